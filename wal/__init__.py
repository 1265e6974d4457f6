"""The durable log: bytes, segments, scan, recovery, retention, reading of blocks (docs/ARCHITECTURE.md, docs/FORMAT.md)."""
