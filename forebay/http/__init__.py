"""HTTP between the parts: server, clients, and bounds on what comes in."""
