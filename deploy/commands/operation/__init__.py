"""Requests of an operator to the driver: batch, cursors, forget."""
