"""Which batches the driver reads for ``batch.df``. ``tests/engines`` reads them with Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from driver.spark import small
from driver.spark.small import SmallBatches
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.reading import BlockReference, read_blocks


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The rows of each batch that was passed to Spark."""
    passed: list[list[Any]] = []
    monkeypatch.setattr(small, "frame_of", lambda session, rows, headers: passed.append(rows) or "frame")
    return passed


def session(encrypts_files: bool = False) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_encryption_enabled=encrypts_files))


def compressed(stored: Stored, count: int = 10) -> list[BlockReference]:
    """Store blocks of about 3 kB that decompress to 60 kB."""
    references = []
    for n in range(1, count + 1):
        meta, payload = block({("a", 0): filler(30, start=30 * n, size=2000)}, sequence=n, compression="zstd")
        ranges = (msgspec.structs.replace(meta.ranges[0], bytes=60_000),)
        references.append(stored.add(msgspec.structs.replace(meta, ranges=ranges), payload))
    return references


def test_limit_is_on_the_decompressed_blocks(
    stored: Stored, parts: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: a batch above it is not decoded in the driver's process at all."""
    references = compressed(stored)
    assert sum(reference.handle.length for reference in references) < 100_000
    tasks = [references[:5], references[5:]]
    assert SmallBatches(1_000_000).frame(session(), tasks, stored.plan(), lambda counts: None) == "frame"
    assert [[rows.num_rows for rows in batch] for batch in parts] == [[150, 150]]
    monkeypatch.setattr(small, "read_task", lambda *_: pytest.fail("a task reads it"))
    assert SmallBatches(500_000).frame(session(), tasks, stored.plan(), lambda counts: None) is None


def test_task_too_large_for_sparks_messages_reads_its_blocks_itself(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = compressed(stored)
    monkeypatch.setattr(small, "TASK_BYTES_MAX", 400_000)
    batches = SmallBatches(10_000_000)
    assert batches.frame(session(), [references[:5], references[5:]], stored.plan(), lambda counts: None) == "frame"
    assert batches.frame(session(), [references], stored.plan(), lambda counts: None) is None
    # headers, and blocks of old releases, are larger than their metadata says
    ranges = [msgspec.structs.replace(reference.ranges[0], bytes=0) for reference in references]
    rows = [batch for read in read_blocks(references, stored.plan()) for batch in read.batches]
    monkeypatch.setattr(small, "read_task", lambda task, plan, count: iter(rows))
    unknown = [msgspec.structs.replace(one, ranges=(range_,)) for one, range_ in zip(references, ranges, strict=True)]
    assert batches.frame(session(), [unknown], stored.plan(), lambda counts: None) is None


def test_encrypted_blocks_are_not_written_to_a_file_unencrypted(stored: Stored) -> None:
    """Spark's Python writes the rows to a file on their way to the JVM, encrypted if its files are."""
    tasks = [compressed(stored, 2)]
    plan = stored.plan(key_file="/etc/forebay/keys")
    batches = SmallBatches(1_000_000)
    assert batches.frame(session(), tasks, plan, lambda counts: None) is None
    assert batches.frame(session(encrypts_files=True), tasks, plan, lambda counts: None) == "frame"
