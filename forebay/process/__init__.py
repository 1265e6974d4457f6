"""A service's process: signals, clock, supervision, secret files, failpoints."""
