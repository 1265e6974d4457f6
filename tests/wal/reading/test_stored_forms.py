"""Every form in which a block can be stored (compression, encryption) is read back by every tier that stores."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pytest

from executor_agent.main import Agent
from forebay.model.errors import UnreadableBlockError
from forebay.model.payload import Compression
from tests.support.state.rows import ODD_ROWS, block, filler
from tests.support.state.stored import Stored
from wal.blocks.encryption import KEYS_VARIABLE, KeyRing
from wal.reading import BlockReference, per_process, read_block

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

OLD, NEW = b"o" * 32, b"n" * 32
RANGES = {("a", 0): ODD_ROWS, ("b", 1): filler(3000)}


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def written(**keys: bytes) -> str:
    return "".join(f"{key_id} {base64.b64encode(key).decode()}\n" for key_id, key in keys.items())


def key_file(root: Path, **keys: bytes) -> str:
    path = root / "keys"
    path.write_text(written(**keys))
    path.chmod(0o600)
    return str(path)


def sealed(stored: Stored, sequence: int, compression: Compression = "none", **keys: bytes) -> BlockReference:
    return stored.add(*KeyRing(keys).seal(*block(RANGES, sequence=sequence, compression=compression)))


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_each_tier_reads_plain_compressed_and_encrypted_blocks(
    stored: Stored, compression: Compression, encrypted: bool
) -> None:
    plain = read_block(stored.add(*block(RANGES, sequence=1)), stored.plan())
    if encrypted:
        reference = sealed(stored, 2, compression, k=OLD)
        for path in (*stored.blocks_directory.rglob("*-2.block"), *(stored.root / "wal").rglob("*.seg")):
            data = path.read_bytes()
            assert data.rfind(b"ARROW1") < 0 and data.count(b"2999,2999,2999") <= 1  # the first block's alone
    else:
        reference = stored.add(*block(RANGES, sequence=2, compression=compression))
    with Agent(stored.settings()) as agent:
        for tier in ("local", "agent", "wal"):
            plan = stored.plan(
                tier, agent_urls={"h1": agent.url}, verify_digests=True, key_file=key_file(stored.root, k=OLD)
            )
            read = read_block(reference, plan)
            assert (read.tier, read.failures) == (tier, ())
            assert pa.Table.from_batches(read.batches) == pa.Table.from_batches(plain.batches)


def test_missing_key_is_named_and_used_once_it_is_added(stored: Stored) -> None:
    """A worker that lives through a rotation reads the file again when a block names a key it does not know."""
    old, new = sealed(stored, 1, old=OLD), sealed(stored, 2, new=NEW)
    plan = stored.plan(key_file=key_file(stored.root, old=OLD))
    assert read_block(old, plan).tier == "local"
    with pytest.raises(UnreadableBlockError) as caught:
        read_block(new, plan)
    for part in (
        "local: ",
        "wal: ",
        "encrypted with key 'new'",
        "configured keys are 'old'",
        "wal.key_file",
        KEYS_VARIABLE,
    ):
        assert part in str(caught.value)
    key_file(stored.root, new=NEW, old=OLD)
    assert {read_block(reference, plan).tier for reference in (old, new)} == {"local"}


def test_a_key_that_was_changed_under_its_id_is_damage(stored: Stored) -> None:
    reference = sealed(stored, 1, k=OLD)
    with pytest.raises(UnreadableBlockError, match="the bytes of key 'k' were"):
        read_block(reference, stored.plan(key_file=key_file(stored.root, k=NEW)))


def test_missing_key_is_counted_and_a_broken_key_file_is_reported(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = sealed(stored, 1, k=OLD)
    with pytest.raises(UnreadableBlockError, match="no keys are configured"):
        read_block(reference, stored.plan())
    with pytest.raises(UnreadableBlockError, match=r"cannot read .*: No such file"):
        read_block(reference, stored.plan(key_file=str(stored.root / "absent")))
    assert not [name for _, name in per_process._opened if "absent" in name]
    monkeypatch.setenv(KEYS_VARIABLE, written(k=OLD))
    read = read_block(reference, stored.plan(key_file=str(stored.root / "absent")))
    assert dict(read.counts.items()) == {"local": 2}
