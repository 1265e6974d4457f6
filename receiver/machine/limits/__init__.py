"""Limits on memory and rates, and the pauses that enforce them."""
