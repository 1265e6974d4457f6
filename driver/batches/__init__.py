"""Batches: when a batch begins, how its job runs and is retried, and the code that runs inside a task."""
