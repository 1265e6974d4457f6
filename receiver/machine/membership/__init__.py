"""Who this process is and what it has: registration, subscribed topics, partitions, whether it drains."""
