"""The durable log: stores, segments, blocks, decisions on segments, reading of blocks (docs/ARCHITECTURE.md, docs/FORMAT.md)."""
