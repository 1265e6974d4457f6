"""Child processes of `forebay up`: started, restarted, stopped in order, once on a machine."""
