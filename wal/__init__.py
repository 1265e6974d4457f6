"""The durable log: stores, segments, blocks, reading of blocks (docs/architecture/storage.md, docs/FORMAT.md)."""
