"""Blocks stored as receivers store them: in a WAL segment and as a host's local copy."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa

from forebay.model.values import Block, BlockMeta
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from wal.blocks import encode_meta
from wal.blocks.local_writing import write_local
from wal.reading import BlockReference, ReadPlan, Tier
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import NO_OPTIONS, StorageOptions, open_storage


class Stored:
    """A WAL and a block directory under ``root``."""

    def __init__(self, root: Path, wal_url: str = "", storage: StorageOptions = NO_OPTIONS) -> None:
        self.root = root
        self.blocks_directory = root / "blocks"
        self.wal_url = wal_url or f"file://{root}/wal"
        self._storage = storage
        uids = itertools.count(7)
        self._writer = LogWriter(
            open_storage(self.wal_url, storage),
            lambda sequence: f"s/r1/{sequence:08}.seg",
            identity=SegmentIdentity("s", "r1", 1 << 40 | 1, 1),
            limits=SegmentLimits(size_bytes=10_000_000, age_seconds=1000.0),
            now=lambda: 0.0,
            new_uid=lambda: next(uids),
        )

    def add(self, meta: BlockMeta, payload: pa.Buffer, local: bool = True) -> BlockReference:
        pending = self._writer.append(FrameKind.BLOCK, encode_meta(meta), payload)
        self._writer.sync()
        assert pending.handle is not None
        if local:
            write_local(self.blocks_directory, meta, payload)
        return BlockReference.of(Block(meta, pending.handle, local))

    def plan(self, *tiers: Tier, **fields: object) -> ReadPlan:
        return ReadPlan(
            wal_url=self.wal_url,
            blocks_directory=str(self.blocks_directory),
            tiers=tiers or ("local", "agent", "wal"),
            **fields,  # type: ignore[arg-type]
        )

    def settings(self, driver_url: str = "http://127.0.0.1:9", **spark: str) -> Settings:
        """``driver_url``: by default no process answers there, and there is no broker to read blocks from. The agent takes a
        free port, and is host ``h1``."""
        return from_values(
            {
                "stream": "s",
                "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1", "read_blocks": False},
                "wal": {"url": self.wal_url},
                "driver": {"journal": f"file://{self.root}/journal", "url": driver_url},
                "agent": {
                    "blocks": str(self.blocks_directory),
                    "url": "http://127.0.0.1:0",
                    "host": "h1",
                    "heartbeat_interval": "20ms",
                },
                "spark": spark,
                "storage": self._storage,
            }
        )
