"""Batches on Spark: the engine, where tasks run, what executors need."""
