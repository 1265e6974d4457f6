"""What the driver and supervisors see and order: heartbeats, commands, status, the steps of a drain."""
