"""Spark's Java: the check for it, its JVM and its log, and archives of its classes."""
