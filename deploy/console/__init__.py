"""The command line: configuration, tables, progress, groups of commands."""
