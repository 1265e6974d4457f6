"""Threads that send requests to the driver and to the broker, and pass the outcomes to the machine."""
