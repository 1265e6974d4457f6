"""Batches on Spark: the engine, the preferred hosts of tasks, and what the driver ships to executors."""
