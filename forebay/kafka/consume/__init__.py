"""Consumers: of a group, and of exact ranges of offsets without one."""
