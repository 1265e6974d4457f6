"""What all commands share: options and configuration, requests to the driver, tables, progress, groups of commands."""
