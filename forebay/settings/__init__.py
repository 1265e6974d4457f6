"""The configuration: its keys, their bounds, and what is said about mistakes."""
