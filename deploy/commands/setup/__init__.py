"""Commands that set up a host: install, validate, token."""
