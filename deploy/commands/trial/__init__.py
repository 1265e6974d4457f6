"""Commands to try Forebay out: demo, broker."""
