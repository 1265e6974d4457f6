"""A broker for demos and tests, its jars, and data for it."""
