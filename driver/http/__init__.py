"""The driver's HTTP API, and the content of its answers: status, problems, lag."""
