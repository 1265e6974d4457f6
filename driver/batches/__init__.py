"""Batches: when one begins, the running of its job, failures, and what runs inside a task."""
