"""What the driver knows and keeps: events, the state that they make, the journal that holds them, the lease."""
