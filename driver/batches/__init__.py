"""Batches: when one begins, its job, its engine, what fails."""
