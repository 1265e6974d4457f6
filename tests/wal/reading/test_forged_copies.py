"""Forged copies: a record is changed so that all checksums match. No reader accepts it from a place that others can write."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import urllib3

from executor_agent.main import Agent
from forebay.model.errors import CorruptionError, LostBlockError
from forebay.model.values import Block, BlockMeta
from tests.support.state.columns import column_values
from tests.support.state.forged import forged, forged_copy
from tests.support.state.rows import Row, block
from tests.support.state.stored import Stored
from wal.blocks import cached_path, local_path, read_local
from wal.blocks.digests import completed
from wal.blocks.encryption import KeyRing
from wal.reading import BlockReference, ReadPlan, per_process, read_block, this_host
from wal.reading.stored_copies import stored_copy

# an agent's server leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

TRUE, FALSE = b"pay 000010 to bob   ....", b"pay 999999 to mallory..."
ROWS = [Row(b"k", TRUE, 0), Row(b"k", b"pay 000020 to eve", 1)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No agent is remembered as silent."""
    per_process._opened.clear()
    yield
    per_process._opened.clear()


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def made() -> tuple[BlockMeta, pa.Buffer]:
    return completed(*block({("a", 0): ROWS}), None)


@pytest.fixture
def reference(stored: Stored, made: tuple[BlockMeta, pa.Buffer]) -> BlockReference:
    return stored.add(*made, local=False)


@pytest.fixture
def lie(made: tuple[BlockMeta, pa.Buffer]) -> bytes:
    meta, payload = made
    return forged_copy(meta, forged(payload, TRUE, FALSE))


def values(reference: BlockReference, plan: ReadPlan) -> list[bytes]:
    return [value for batch in read_block(reference, plan).batches for value in column_values(batch, "value")]


def put(stored: Stored, reference: BlockReference, data: bytes) -> Path:
    path = cached_path(stored.blocks_directory, "s", reference.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_four_bytes_make_a_forged_copy_pass_every_checksum(
    stored: Stored, reference: BlockReference, lie: bytes
) -> None:
    """Otherwise the tests below would prove nothing."""
    copy = read_local(put(stored, reference, lie))
    assert copy.checksum == reference.handle.checksum
    assert FALSE[:-4] in bytes(memoryview(copy.payload))


def test_forged_cached_copy_of_this_host_is_damaged(stored: Stored, reference: BlockReference, lie: bytes) -> None:
    put(stored, reference, lie)
    here = reference.also_at((this_host(),))
    read = read_block(here, stored.plan("local", "wal"))
    assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("local", "damaged")])
    assert "the block's SHA-256 is not the one that the journal names" in read.failures[0].detail
    assert values(here, stored.plan("local", "wal"))[0] == TRUE


def test_forged_copy_served_by_an_agent_is_damaged(stored: Stored, reference: BlockReference, lie: bytes) -> None:
    """The agent has no journal to compare the copy with; the reader compares it."""
    with Agent(stored.settings()) as agent, urllib3.PoolManager() as pool:
        assert pool.request("PUT", f"{agent.url}/v1/blocks/s/{reference.id}", body=lie).status == 200
        plan = msgspec.structs.replace(stored.plan(agent_urls={"h1": agent.url}), blocks_directory=None)
        read = read_block(reference.also_at(("h1",)), plan)
        assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("agent", "damaged")])
        for tier in ("agent", "local"):
            with pytest.raises(Exception, match="SHA-256"):
                stored_copy(reference.also_at(("h1", this_host())), stored.plan(agent_urls={"h1": agent.url}), tier)


def test_a_forged_frame_of_the_wal_is_damaged(
    stored: Stored, made: tuple[BlockMeta, pa.Buffer], reference: BlockReference
) -> None:
    path = stored.root / "wal" / reference.handle.path
    data = path.read_bytes()
    payload = memoryview(made[1]).tobytes()
    assert payload in data
    path.write_bytes(data.replace(payload, forged(payload, TRUE, FALSE)))
    with pytest.raises(LostBlockError, match="SHA-256 is not the one that the journal names"):
        read_block(reference, stored.plan("wal"))
    with pytest.raises(CorruptionError, match="SHA-256"):
        stored_copy(reference, stored.plan("wal"), "wal")


def test_forged_file_of_the_hosts_receiver_is_not_written_again(
    stored: Stored, made: tuple[BlockMeta, pa.Buffer], lie: bytes
) -> None:
    """Readers trust such a file; recovery does not, since it journals the block's new place."""
    reference = stored.add(*made)
    local_path(stored.blocks_directory, "s", reference.id).write_bytes(lie)
    with pytest.raises(CorruptionError, match="SHA-256"):
        stored_copy(reference, stored.plan("local"), "local")


def test_a_forged_copy_of_an_encrypted_block_is_not_taken_for_a_plain_one(stored: Stored) -> None:
    """A process without the key could send a plain payload instead."""
    meta, payload = completed(*block({("a", 0): ROWS}), KeyRing({"k": bytes(32)}))
    reference = stored.add(meta, payload, local=False)
    plain = msgspec.structs.replace(meta, key_id=None)
    put(stored, reference, forged_copy(plain, forged(payload, bytes(memoryview(payload)[:24]), TRUE)))
    with pytest.raises(LostBlockError, match="SHA-256"):
        read_block(reference.also_at((this_host(),)), stored.plan("local"))


def test_the_digest_travels_to_tasks_and_over_the_wire(
    reference: BlockReference, made: tuple[BlockMeta, object]
) -> None:
    assert isinstance(reference.sha256, bytes) and len(reference.sha256) == 32
    assert pickle.loads(pickle.dumps(reference)) == reference
    sent = Block(made[0], reference.handle, False)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Block) == sent
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Block) == sent


def test_a_block_of_an_older_release_is_read_as_before(stored: Stored) -> None:
    """Neither the journal nor the frame has a SHA-256 of it: its checksum is all that can be compared."""
    meta, payload = block({("a", 0): ROWS})
    reference = stored.add(meta, payload)
    assert reference.sha256 is msgspec.UNSET is pickle.loads(pickle.dumps(reference)).sha256
    assert b"sha256" not in msgspec.msgpack.encode(meta)
    assert [read_block(reference, stored.plan(tier)).tier for tier in ("local", "wal")] == ["local", "wal"]


@pytest.mark.parametrize("digest", [b"", b"x" * 31, b"x" * 33])
def test_what_is_no_digest_is_refused(digest: bytes, made: tuple[BlockMeta, object]) -> None:
    wrong = msgspec.msgpack.encode({**msgspec.to_builtins(made[0]), "sha256": digest})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(wrong, type=BlockMeta)


def test_receivers_file_is_writable_only_by_its_user(stored: Stored, made: tuple[BlockMeta, object]) -> None:
    """Its SHA-256 is not verified, so no other user may be able to change it: file and folder belong to its user alone."""
    stored.add(*made)  # type: ignore[arg-type]
    path = local_path(stored.blocks_directory, "s", made[0].id)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
