"""A real disk error in a large local copy: the block is read from the next tier, and the process that reads it lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.faulty.bad_disk import half_readable
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import local_path
from wal.blocks.local_copies import MAPPED_BYTES_MIN
from wal.reading import BlockReference, ReadPlan

_READS = """
import sys
import msgspec
from wal.reading import BlockReference, ReadPlan, read_block
reference, plan = (msgspec.msgpack.decode(part, type=type_) for part, type_ in
                   zip(msgspec.msgpack.decode(sys.stdin.buffer.read()), (BlockReference, ReadPlan)))
print(sum(batch.num_rows for batch in read_block(reference, plan).batches))
"""


@pytest.mark.parametrize("rows", [2, MAPPED_BYTES_MIN], ids=["small", "mapped"])
def test_block_whose_local_copy_the_disk_cannot_read_is_read_from_the_wal(tmp_path: Path, rows: int) -> None:
    stored = Stored(tmp_path)
    reference = stored.add(*block({("a", 0): filler(rows)}))
    copies = local_path(stored.blocks_directory, reference.stream, reference.id).parent
    assert (reference.handle.length > MAPPED_BYTES_MIN) == (rows > 2)
    mount = tmp_path / "mounted" / reference.stream
    mount.mkdir(parents=True)
    with half_readable(copies, mount):
        copy = mount / f"{reference.id}.block"
        with pytest.raises(OSError, match="Input/output error"):
            copy.read_bytes()
        plan = msgspec.structs.replace(stored.plan("local", "wal"), blocks_directory=str(mount.parent))
        assert read(reference, plan) == rows


def read(reference: BlockReference, plan: ReadPlan) -> int:
    """Return the number of rows that a process of its own reads."""
    given = msgspec.msgpack.encode([msgspec.msgpack.encode(part) for part in (reference, plan)])
    done = subprocess.run([sys.executable, "-c", _READS], input=given, capture_output=True, timeout=60, check=True)
    return int(done.stdout)
