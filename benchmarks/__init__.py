"""What Forebay costs, against the plainest thing that does part of the same work: ``python -m benchmarks --help``.

One module for each benchmark; each says in its docstring what it measures and against what. docs/PERFORMANCE.md keeps
the last recorded run.
"""
