"""HTTP between the processes: the server with its limits, and clients."""
