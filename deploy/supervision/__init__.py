"""The child processes of ``forebay up``: started once on a machine, restarted after a failure, stopped in order."""
