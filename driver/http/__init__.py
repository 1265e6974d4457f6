"""The driver's HTTP API and what it shows: status, problems, lag."""
