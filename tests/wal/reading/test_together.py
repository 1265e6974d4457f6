"""Small blocks that are read together give the rows, counts and errors of blocks that are read one by one.

One module, because every test compares both ways of reading for the same blocks.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from driver.batches.tasks.reading import TaskBlocks
from executor_agent.main import Agent
from forebay.messages import COPY_SIZES, CopiesRequest
from forebay.model.errors import LostBlockError, UnreadableBlockError
from forebay.model.payload import Compression
from tests.support.state.rows import ODD_ROWS, block, filler
from tests.support.state.stored import Stored
from tests.wal.reading.test_stored_forms import OLD, key_file, sealed
from wal.blocks import local_path
from wal.blocks.local_writing import write_local
from wal.reading import (
    BlockReference,
    BlocksRead,
    ReadPlan,
    TierCounts,
    per_process,
    read_block,
    read_blocks,
    records,
    together,
)
from wal.reading.one_block import OnLost
from wal.storage.local import LocalStorage

# an agent's server leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No agent is remembered as silent."""
    per_process._opened.clear()
    yield
    per_process._opened.clear()


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def small(stored: Stored, count: int = 20, first: int = 1) -> list[BlockReference]:
    """Store blocks of a few records, each with ranges of two partitions and of two topics."""
    return [
        stored.add(*block({("a", 0): filler(3, start=10 * n), ("b", 1): filler(n % 4 + 1, start=10 * n)}, sequence=n))
        for n in range(first, first + count)
    ]


def elsewhere(stored: Stored, plan: ReadPlan) -> ReadPlan:
    """Return ``plan`` for a task on a host without copies."""
    return msgspec.structs.replace(plan, blocks_directory=str(stored.root / "elsewhere"))


def total(counts: Sequence[TierCounts]) -> TierCounts:
    return sum(counts, TierCounts())


def same_as_alone(references: Sequence[BlockReference], plan: ReadPlan) -> tuple[TierCounts, int]:
    """Check that rows and counts are those of blocks read one by one. Return the counts, and the number of reads."""
    alone = [read_block(reference, plan) for reference in references]
    per_process._opened.clear()
    found = list(read_blocks(references, plan))
    rows = pa.Table.from_batches(batch for read in found for batch in read.batches)
    rows.validate(full=True)
    expected = pa.Table.from_batches([batch for read in alone for batch in read.batches])
    assert rows.schema == expected.schema
    assert rows == expected
    counts = total([read.counts for read in found])
    assert counts == total([read.counts for read in alone])
    return counts, len(found)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def copy_of(stored: Stored, reference: BlockReference) -> Path:
    return local_path(stored.blocks_directory, reference.stream, reference.id)


class CountedReads:
    """Counts the ranged reads of the WAL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        plain = LocalStorage.read

        def counted(storage: LocalStorage, path: str, offset: int = 0, length: int | None = None) -> bytes:
            self.lengths.append(length or 0)
            return plain(storage, path, offset, length)

        monkeypatch.setattr(LocalStorage, "read", counted)


def test_each_tier_returns_the_same_rows_as_one_by_one(stored: Stored) -> None:
    references = small(stored)
    with Agent(stored.settings()) as agent:
        for tier in ("local", "agent", "wal"):
            plan = stored.plan(tier, agent_urls={"h1": agent.url}, verify_digests=True)
            assert same_as_alone(references, plan) == (TierCounts({tier: 40}), 1)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_every_form_of_a_block_is_read_together_with_others(stored: Stored, compression: Compression) -> None:
    """Odd values, headers, compression, encryption, empty and large blocks, topics that differ from block to block."""
    number = itertools.count(1)
    references = [
        stored.add(*block({("a", 0): ODD_ROWS, ("b", 1): filler(3)}, sequence=next(number), compression=compression)),
        stored.add(*block({("a", 0): ODD_ROWS}, sequence=next(number), headers=True, compression=compression)),
        stored.add(*block({("a", 0): filler(5)}, sequence=next(number), rows_per_batch=2, compression=compression)),
        stored.add(*block({("c", 2): filler(5), ("a", 0): []}, sequence=next(number), compression=compression)),
        stored.add(*block({("a", 0): []}, sequence=next(number), compression=compression)),
        sealed(stored, next(number), compression, k=OLD),
        stored.add(*block({("a", 0): filler(20_000)}, sequence=next(number), compression=compression)),
        *small(stored, first=20, count=3),
    ]
    plan = stored.plan(verify_digests=True, headers=True, key_file=key_file(stored.root, k=OLD))
    counts, _ = same_as_alone(references, plan)
    assert counts == TierCounts({"local": sum(len(reference.ranges) for reference in references)})
    without = [reference for reference in references if not reference.headers]
    same_as_alone(without, msgspec.structs.replace(plan, headers=False))


def test_neighbouring_frames_are_one_read_of_the_wal(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    references = small(stored)
    reads = CountedReads(monkeypatch)
    found = list(read_blocks(references, stored.plan("wal")))
    assert len(reads.lengths) == 1
    assert total([read.counts for read in found]) == TierCounts({"wal": 40})


def test_only_close_frames_are_one_read_of_the_wal(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    references = small(stored, count=5)
    stored.add(*block({("a", 0): filler(9_000)}, sequence=50))  # of another task
    references += small(stored, count=5, first=60)
    reads = CountedReads(monkeypatch)
    assert len(list(read_blocks(references, stored.plan("wal")))) == 1
    assert len(reads.lengths) == 2
    assert sum(reads.lengths) < 200_000


def test_bytes_and_number_of_blocks_in_memory_are_bounded(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    references = small(stored)
    monkeypatch.setattr(records, "FETCH_BLOCKS", 4)
    reads = CountedReads(monkeypatch)
    assert len(list(read_blocks(references, stored.plan("wal")))) == 5
    monkeypatch.setattr(records, "FETCH_BYTES", 2 * max(reference.handle.length for reference in references))
    assert len(list(read_blocks(references, stored.plan("wal")))) == 10
    assert len(reads.lengths) == 15
    monkeypatch.setattr(records, "SMALL_BYTES", 1)
    assert same_as_alone(references, stored.plan()) == (TierCounts({"local": 40}), 20)


@pytest.mark.parametrize("counted", [True, False])
def test_compressed_blocks_count_with_their_decompressed_bytes(
    stored: Stored, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: 20 blocks of about 3 kB decompress to 60 kB each. Blocks of old releases do not say so in their metadata."""
    references = []
    for n in range(1, 21):
        meta, payload = block({("a", 0): filler(30, start=30 * n, size=2000)}, sequence=n, compression="zstd")
        if counted:
            meta = msgspec.structs.replace(meta, ranges=(msgspec.structs.replace(meta.ranges[0], bytes=60_000),))
        references.append(stored.add(meta, payload))
    assert max(reference.handle.length for reference in references) < 8_000
    assert {reference.decoded_bytes > 60_000 for reference in references} == {counted}
    assert same_as_alone(references, stored.plan())[1] == 1
    limit = 200_000
    if counted:
        monkeypatch.setattr(records, "FETCH_BYTES", limit)
    else:
        monkeypatch.setattr(together, "RUN_BYTES", limit)
    reads = CountedReads(monkeypatch)
    found = [batch for read in read_blocks(references, stored.plan("wal")) for batch in read.batches]
    assert len(found) == 7
    assert max(batch.nbytes for batch in found) <= limit
    assert len(reads.lengths) == (7 if counted else 1)
    monkeypatch.setattr(records, "SMALL_BYTES", 50_000)
    assert len(list(read_blocks(references, stored.plan("wal")))) == (20 if counted else 7)


def test_damaged_copy_costs_only_its_own_block_another_tier(stored: Stored) -> None:
    """INV-5."""
    references = small(stored)
    flip(copy_of(stored, references[7]), -100)
    copy_of(stored, references[11]).write_bytes(b"")
    written = write_local(stored.root / "other", *block({("a", 0): filler(3)}, sequence=13))
    written.replace(copy_of(stored, references[12]))
    counts, _ = same_as_alone(references, stored.plan())
    assert counts == TierCounts({"local": 34, "wal": 6}, {"local: damaged": 3})


def test_copy_of_another_length_costs_only_its_own_block_another_tier(stored: Stored) -> None:
    """Copies are read into memory that they share: no byte of a neighbour completes a truncated one."""
    references = small(stored)
    for number, more in ((3, -(1 << 20)), (5, -64), (7, -1), (9, 1), (11, 64), (13, 5_000)):
        path = copy_of(stored, references[number])
        data = path.read_bytes()
        path.write_bytes(data + bytes(more) if more > 0 else data[: max(0, len(data) + more)])
    counts, _ = same_as_alone(references, stored.plan("local", "wal", verify_digests=True))
    assert counts == TierCounts({"local": 28, "wal": 12}, {"local: damaged": 6})


def test_next_group_is_read_while_the_caller_uses_one_and_a_large_block_is_not(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: one group is read ahead, not two; no large block is in memory beside another."""
    large = stored.add(*block({("a", 0): filler(20_000)}, sequence=90))
    references = [*small(stored, count=12), large]
    monkeypatch.setattr(records, "FETCH_BLOCKS", 4)
    read: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    plain = records._read

    def noted(group: Sequence[BlockReference], plan: ReadPlan, on_lost: OnLost | None) -> list[BlocksRead]:
        found = plain(group, plan, on_lost)
        read.put((len(group), threading.current_thread().name.rpartition("_")[0]))
        return found

    monkeypatch.setattr(records, "_read", noted)
    reads = read_blocks(references, stored.plan())
    seen = []
    next(reads)
    seen += [read.get(timeout=30), read.get(timeout=30)]  # the second one without a call of the caller
    assert read.empty()
    next(reads)
    next(reads)
    seen.append(read.get(timeout=30))
    assert read.empty()
    assert [size for size, _ in seen] == [4, 4, 4]
    assert seen[0][1] == ""
    assert {thread for _, thread in seen[1:]} == {"forebay-read-ahead"}
    assert len(list(reads)) == 1
    assert read.get(timeout=30) == (1, "")


def test_local_copies_are_not_read_ahead(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to wait for; a copy of one other host's agent in the group makes it wait."""
    references = small(stored, count=12)
    monkeypatch.setattr(records, "FETCH_BLOCKS", 4)
    monkeypatch.setattr("socket.gethostname", lambda: "h1")
    threads: list[str] = []
    plain = records._read

    def noted(group: Sequence[BlockReference], plan: ReadPlan, on_lost: OnLost | None) -> list[BlocksRead]:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return plain(group, plan, on_lost)

    monkeypatch.setattr(records, "_read", noted)
    expected = list(read_blocks(references, stored.plan()))
    assert threads == ["", "", ""]
    references[5] = msgspec.structs.replace(references[5], host="h2")
    for more, plan in ((1, stored.plan()), (2, stored.plan("wal"))):
        threads.clear()
        found = list(read_blocks(references, plan))
        assert [read.batches for read in found] == [read.batches for read in expected]
        assert threads.count("forebay-read-ahead") == more


def test_unreadable_block_of_the_next_group_fails_the_read_after_the_records_before_it(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: an error of the thread that reads ahead is raised to the caller."""
    references = small(stored, count=8)
    monkeypatch.setattr(records, "FETCH_BLOCKS", 4)
    copy_of(stored, references[5]).unlink()
    reads = read_blocks(references, stored.plan("local"))
    rows = sum(batch.num_rows for batch in next(reads).batches)
    assert rows == sum(reference.records for reference in references[:4])
    with pytest.raises(LostBlockError, match=references[5].id):
        next(reads)


def test_reading_that_ends_early_leaves_no_thread(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    references = small(stored, count=12)
    monkeypatch.setattr(records, "FETCH_BLOCKS", 4)
    reads = read_blocks(references, stored.plan())
    next(reads)
    reads.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forebay-read-ahead")]


def test_lost_copies_are_read_from_the_wal_in_one_read(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of this host were deleted, and its agent has none either."""
    monkeypatch.setattr("socket.gethostname", lambda: "h1")
    references = small(stored)
    for reference in references[3:]:
        copy_of(stored, reference).unlink()
    with Agent(stored.settings()) as agent:
        plan = stored.plan(agent_urls={"h1": agent.url})
        counts, _ = same_as_alone(references, plan)
        assert counts == TierCounts({"local": 6, "wal": 34}, {"local: missing": 17, "agent: missing": 17})
        reads = CountedReads(monkeypatch)
        list(read_blocks(references, plan))
        assert len(reads.lengths) == 1


def test_damaged_frame_of_the_wal_in_the_middle_of_a_read_is_named_alone(stored: Stored) -> None:
    """INV-5: the error names the one block, its ranges and each tier's reason."""
    references = small(stored)
    lost = references[9]
    copy_of(stored, lost).unlink()
    flip(stored.root / "wal" / lost.handle.path, lost.handle.offset + lost.handle.length - 100)
    with pytest.raises(LostBlockError) as caught:
        list(read_blocks(references, stored.plan()))
    message = str(caught.value)
    for part in (lost.id, *(range_.label for range_ in lost.ranges), "wal: ", "checksum"):
        assert part in message
    assert references[8].id not in message
    # an operator accepts the loss of its ranges: the other blocks are read together again
    accepted = stored.plan(lost=frozenset(range_.label for range_ in lost.ranges))
    rows = [batch for read in read_blocks(references, accepted) for batch in read.batches]
    assert sum(batch.num_rows for batch in rows) == sum(reference.records for reference in references) - lost.records


def test_missing_segment_is_missing_for_each_of_its_blocks(stored: Stored) -> None:
    references = small(stored)
    (stored.root / "wal" / references[0].handle.path).unlink()
    with pytest.raises(LostBlockError, match=f"{references[0].id} .*wal: it is not there"):
        list(read_blocks(references, stored.plan("wal")))


def test_truncated_segment_costs_only_the_blocks_beyond_its_end(stored: Stored) -> None:
    references = small(stored)
    path = stored.root / "wal" / references[0].handle.path
    path.write_bytes(path.read_bytes()[: references[12].handle.offset + 10])
    counts, _ = same_as_alone(references[:12], stored.plan("wal"))
    assert counts == TierCounts({"wal": 24})
    with pytest.raises(UnreadableBlockError, match=f"{references[12].id} .*the file only 10"):
        list(read_blocks(references, stored.plan("wal")))


@pytest.mark.parametrize("change", ["partition", "topic", "offsets", "digest"])
def test_rows_that_contradict_the_metadata_are_named_with_their_block(stored: Stored, change: str) -> None:
    """The checksums fit, since the metadata was written so; the rows of the other blocks are not blamed."""
    meta, payload = block({("a", 0): filler(3)}, sequence=30)
    (range_,) = meta.ranges
    wrong = {
        "partition": msgspec.structs.replace(range_, partition=1),
        "topic": msgspec.structs.replace(range_, topic="z"),
        "offsets": msgspec.structs.replace(range_, from_offset=1, until_offset=9),
        "digest": msgspec.structs.replace(range_, digest="0" * 16),
    }[change]
    changed = stored.add(msgspec.structs.replace(meta, ranges=(wrong,)), payload)
    references = [*small(stored, count=5), changed, *small(stored, count=5, first=40)]
    with pytest.raises(UnreadableBlockError) as caught:
        list(read_blocks(references, stored.plan("local", verify_digests=True)))
    assert changed.id in str(caught.value)
    assert wrong.label in str(caught.value)


def test_agent_that_is_down_costs_one_request_and_the_wal_one_read(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = small(stored)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    plan = elsewhere(stored, stored.plan(agent_urls={"h1": url}))
    counts, _ = same_as_alone(references, plan)
    assert counts == TierCounts({"wal": 40}, {"agent: unreachable": 20})
    per_process._opened.clear()
    reads = CountedReads(monkeypatch)
    list(read_blocks(references, plan))
    assert len(reads.lengths) == 1


def test_agent_answers_for_all_blocks_of_its_host_in_one_request(stored: Stored) -> None:
    """Blocks that it does not have, or has damaged, come from the WAL."""
    references = small(stored)
    with Agent(stored.settings()) as agent:
        flip(copy_of(stored, references[5]), -100)
        copy_of(stored, references[6]).unlink()
        plan = elsewhere(stored, stored.plan(agent_urls={"h1": agent.url}))
        counts, _ = same_as_alone(references, plan)
        assert counts == TierCounts({"agent": 36, "wal": 4}, {"agent: damaged": 1, "agent: missing": 1})


def test_blocks_of_several_hosts_are_asked_from_each(stored: Stored) -> None:
    """Hosts without an agent's URL are passed over, as for a single block."""
    references = small(stored)
    moved = [
        msgspec.structs.replace(reference, host=("h1", "h8", "h9")[number % 3], other_hosts=("h1",) * (number % 2))
        for number, reference in enumerate(references)
    ]
    with Agent(stored.settings()) as agent:
        plan = elsewhere(stored, stored.plan(agent_urls={"h1": agent.url, "h9": agent.url}))
        counts, _ = same_as_alone(moved, plan)
    assert set(counts.ranges) == {"agent", "wal"}


class Answering(BaseHTTPRequestHandler):
    """An agent with an answer of its own to a request for several blocks."""

    answer: Callable[[CopiesRequest], tuple[int, str, bytes]]
    asked: list[CopiesRequest]
    alone: list[str]

    def do_POST(self) -> None:
        request = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])), type=CopiesRequest)
        self.asked.append(request)
        status, sizes, body = type(self).answer(request)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header(COPY_SIZES, sizes)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.alone.append(self.path)
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def answering() -> Iterator[Callable[[Callable[[CopiesRequest], tuple[int, str, bytes]]], tuple[str, type[Answering]]]]:
    servers: list[tuple[HTTPServer, threading.Thread]] = []

    def start(answer: Callable[[CopiesRequest], tuple[int, str, bytes]]) -> tuple[str, type[Answering]]:
        own = type("Own", (Answering,), {"answer": staticmethod(answer), "asked": [], "alone": []})
        server = HTTPServer(("127.0.0.1", 0), own)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}", own

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda _: (200, "", b""), "damaged"),
        (lambda _: (200, "5,x", b"hello"), "damaged"),
        (lambda r: (200, ",".join("99999999999" for _ in r.ids), b"hello"), "damaged"),
        (lambda r: (200, ",".join("64" for _ in r.ids), b"hello"), "damaged"),
        (lambda r: (200, ",".join("-2" for _ in r.ids), b""), "damaged"),
        (lambda r: (206, ",".join("0" for _ in r.ids), b""), "damaged"),
        (lambda _: (403, "", b""), "refused"),
        (lambda _: (503, "", b""), "unreachable"),
        (lambda r: (200, ",".join("0" for _ in r.ids), b""), "missing"),
    ],
    ids=["no sizes", "bad sizes", "too long", "too short", "negative", "another status", "refused", "busy", "none"],
)
def test_invalid_answer_of_an_agent_leads_to_the_next_tier(
    stored: Stored, answering: Callable[..., tuple[str, type[Answering]]], answer: Callable[..., object], kind: str
) -> None:
    """INV-6: its answer does not decide how much memory is allocated."""
    references = small(stored)
    url, agent = answering(answer)
    found = list(read_blocks(references, stored.plan("agent", "wal", agent_urls={"h1": url})))
    assert total([read.counts for read in found]) == TierCounts({"wal": 40}, {f"agent: {kind}": 20})
    assert len(agent.asked) == 1


@pytest.mark.parametrize("status", [404, 405])
def test_agent_of_an_older_release_is_asked_for_one_block_after_another(
    stored: Stored, answering: Callable[..., tuple[str, type[Answering]]], status: int
) -> None:
    references = small(stored, count=3)
    url, agent = answering(lambda _: (status, "", b""))
    found = list(read_blocks(references, stored.plan("agent", "wal", agent_urls={"h1": url})))
    assert total([read.counts for read in found]) == TierCounts({"wal": 6}, {"agent: missing": 3})
    assert agent.alone == [f"/v1/blocks/s/{reference.id}" for reference in references]


def test_block_without_room_in_an_agents_answer_is_asked_for_alone(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: what an agent reads for one answer is bounded."""
    references = small(stored)
    monkeypatch.setattr("executor_agent.copies.COPIES_BYTES_MAX", sum(r.handle.length for r in references) // 2)
    with Agent(stored.settings()) as agent:
        plan = elsewhere(stored, stored.plan("agent", agent_urls={"h1": agent.url}))
        assert same_as_alone(references, plan) == (TierCounts({"agent": 40}), 1)


def test_references_of_a_tasks_small_blocks_are_compressed(stored: Stored) -> None:
    """They travel with the task: what is the same in all of them is sent once."""
    task = TaskBlocks(3, tuple(small(stored, count=200)))
    data = task.encode()
    assert TaskBlocks.decode(data) == task
    assert len(data) / 200 < 100 < len(msgspec.msgpack.encode(task)) / 200 / 4
