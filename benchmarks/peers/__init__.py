"""The race against what a user would otherwise run to land Kafka durably (``make bench-peers``)."""
