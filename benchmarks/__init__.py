"""Benchmarks of Forebay against the simplest program that does part of the same work: ``python -m benchmarks --help``.

Each benchmark has one module, whose docstring says what it measures and against what. docs/PERFORMANCE.md has the last
recorded run.
"""
