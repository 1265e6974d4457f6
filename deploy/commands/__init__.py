"""The commands of ``forebay``, one module each; the folders are the sections of ``forebay --help``, or groups of commands."""
