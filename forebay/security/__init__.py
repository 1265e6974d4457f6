"""Roles, tokens, certificates."""
