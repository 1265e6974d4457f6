"""Decisions as functions of values, without I/O and without a clock."""
