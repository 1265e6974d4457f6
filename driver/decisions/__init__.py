"""Decisions on values alone, without I/O and without a clock."""
