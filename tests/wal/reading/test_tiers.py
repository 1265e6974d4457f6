"""Reading by tiers: each is tested by removing the earlier ones, and no tier's damage reaches a reader."""

from __future__ import annotations

import contextlib
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from executor_agent.main import Agent
from forebay.model.errors import UnreadableBlockError
from forebay.model.values import Handle
from forebay.process.clock import ManualClock
from tests.support.servers.raw_service import dripping, service
from tests.support.state.columns import column_values
from tests.support.state.rows import ODD_ROWS, block, filler
from tests.support.state.stored import Stored
from wal.blocks import local_path
from wal.blocks.local_writing import write_local
from wal.reading import BlockReference, ReadPlan, agents, read_block, wal_tier
from wal.reading.agents import AGENT_REST_SECONDS

# an agent's server leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def reference(stored: Stored) -> BlockReference:
    return stored.add(*block({("a", 0): ODD_ROWS, ("b", 1): filler(2000)}, headers=False))


def local_file(stored: Stored, reference: BlockReference) -> Path:
    return local_path(stored.blocks_directory, reference.stream, reference.id)


def wal_file(stored: Stored, reference: BlockReference) -> Path:
    return stored.root / "wal" / reference.handle.path


def offsets(reference: BlockReference, plan: ReadPlan) -> list[int]:
    return [n for batch in read_block(reference, plan).batches for n in column_values(batch, "offset")]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_each_tier_answers_when_the_earlier_ones_have_no_copy(stored: Stored, reference: BlockReference) -> None:
    expected = [row.offset for row in ODD_ROWS] + list(range(2000))
    with Agent(stored.settings()) as agent:
        plan = stored.plan(agent_urls={"h1": agent.url}, verify_digests=True)
        read = read_block(reference, plan)
        assert (read.tier, read.ranges, read.failures) == ("local", 2, ())
        assert offsets(reference, plan) == expected
        # the agent still has the copy; a task on another host has not
        elsewhere = msgspec.structs.replace(plan, blocks_directory=str(stored.root / "elsewhere"))
        read = read_block(reference, elsewhere)
        assert (read.tier, read.failures) == ("agent", ())
        assert offsets(reference, elsewhere) == expected
    read = read_block(reference, elsewhere)
    assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("agent", "unreachable")])
    assert offsets(reference, elsewhere) == expected
    assert not (stored.root / "elsewhere").exists()


def test_without_a_wal_each_host_that_keeps_a_copy_is_asked(stored: Stored, reference: BlockReference) -> None:
    """INV-5: another host's copy replaces a damaged one; a host without a heartbeat is among the reasons."""
    handle = Handle("", 0, reference.handle.length, reference.handle.checksum)
    kept = msgspec.structs.replace(reference, handle=handle, host="h9", other_hosts=("h1",))
    with Agent(stored.settings()) as agent:
        away = stored.plan("local", "agent", "wal", agent_urls={"h1": agent.url})
        away = msgspec.structs.replace(away, blocks_directory=str(stored.root / "elsewhere"))
        read = read_block(kept, away)
        assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("agent", [("agent", "unreachable")])
        flip(local_file(stored, reference), -200)
        with pytest.raises(UnreadableBlockError) as caught:
            read_block(kept, away)
    message = str(caught.value)
    for part in ("a/0[3, 13)", "b/1[0, 2000)", "host h9 keeps a copy", "is damaged"):
        assert part in message
    assert "wal: " not in message


def test_a_copy_that_its_agent_deleted_is_read_from_the_wal_and_counted(
    stored: Stored, reference: BlockReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "h1")
    local_file(stored, reference).unlink()
    with Agent(stored.settings()) as agent:
        read = read_block(reference, stored.plan(agent_urls={"h1": agent.url}))
    assert read.tier == "wal"
    assert [(f.tier, f.kind) for f in read.failures] == [("local", "missing"), ("agent", "missing")]
    assert dict(read.counts.items()) == {"wal": 2, "local: missing": 1, "agent: missing": 1}


@pytest.mark.parametrize("at", [0, 9, 24, 70, 5000, -200])
def test_block_is_read_from_the_next_tier_if_a_copy_is_damaged(
    stored: Stored, reference: BlockReference, at: int
) -> None:
    """INV-5. The agent serves the same damaged file, so the WAL answers."""
    flip(local_file(stored, reference), at)
    with Agent(stored.settings()) as agent:
        # the agent drops what it sees to be torn at its start: damaged again, so that it serves it
        if not local_file(stored, reference).exists():
            write_local(stored.blocks_directory, *block({("a", 0): ODD_ROWS, ("b", 1): filler(2000)}))
            flip(local_file(stored, reference), at)
        read = read_block(reference, stored.plan(agent_urls={"h1": agent.url}))
    assert read.tier == "wal"
    assert {(f.tier, f.kind) for f in read.failures} <= {
        ("local", "damaged"), ("agent", "damaged"), ("local", "newer"), ("agent", "newer")
    }  # fmt: skip
    assert len(read.failures) == 2


def test_block_is_read_from_the_next_tier_if_a_copy_is_truncated(stored: Stored, reference: BlockReference) -> None:
    path = local_file(stored, reference)
    for length in (0, 10, 64, path.stat().st_size - 64):
        path.write_bytes(path.read_bytes()[:length])
        read = read_block(reference, stored.plan())
        assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("local", "damaged")])


@pytest.mark.parametrize(
    "swap",
    [
        lambda: block({("a", 0): ODD_ROWS, ("b", 1): filler(2000)}, sequence=2),
        lambda: block({("a", 0): ODD_ROWS, ("b", 1): filler(1999)}),
        lambda: block({("a", 0): ODD_ROWS, ("b", 1): filler(2000, size=40)}),
        lambda: block({("a", 0): ODD_ROWS, ("b", 1): filler(2000)}, compression="lz4"),
    ],
    ids=["another block", "other ranges", "other records", "same records, other bytes"],
)
def test_whole_frame_of_another_block_is_refused(
    stored: Stored, reference: BlockReference, swap: Callable[[], tuple[object, object]]
) -> None:
    """A copy may be whole in itself and still not be the one that the journal names."""
    meta, payload = swap()
    written = write_local(stored.root / "other", meta, payload)  # type: ignore[arg-type]
    written.replace(local_file(stored, reference))
    read = read_block(reference, stored.plan())
    assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("local", "damaged")])


def test_when_no_tier_can_read_the_error_names_block_ranges_and_reasons(
    stored: Stored, reference: BlockReference
) -> None:
    """INV-5: a range that can't be read is never an empty partition."""
    flip(local_file(stored, reference), 5000)
    flip(wal_file(stored, reference), reference.handle.offset + 5000)
    with pytest.raises(UnreadableBlockError) as caught:
        read_block(reference, stored.plan(agent_urls={"h1": "http://127.0.0.1:9"}))
    message = str(caught.value)
    for part in (reference.id, "a/0[3, 13)", "b/1[0, 2000)", "local: ", "agent: ", "wal: ", "checksum"):
        assert part in message
    with pytest.raises(UnreadableBlockError, match="no tier keeps it"):
        read_block(reference, stored.plan("agent"))


def test_ranges_accepted_as_lost_are_skipped_and_the_others_still_named(
    stored: Stored, reference: BlockReference
) -> None:
    plan = stored.plan(lost=frozenset({"a/0[3, 13)"}))
    read = read_block(reference, plan)
    assert read.ranges == 1
    assert offsets(reference, plan) == list(range(2000))
    local_file(stored, reference).unlink()
    wal_file(stored, reference).unlink()
    with pytest.raises(UnreadableBlockError) as caught:
        read_block(reference, plan)
    assert "b/1[0, 2000)" in str(caught.value)
    assert "a/0" not in str(caught.value)
    everything = stored.plan(lost=frozenset({"a/0[3, 13)", "b/1[0, 2000)"}))
    assert read_block(reference, everything).batches == ()


def test_a_digest_that_does_not_match_is_damage_where_digests_are_verified(stored: Stored) -> None:
    meta, payload = block({("a", 0): filler(5)})
    wrong = msgspec.structs.replace(meta.ranges[0], digest="0" * 16)
    reference = stored.add(msgspec.structs.replace(meta, ranges=(wrong,)), payload)
    assert read_block(reference, stored.plan()).tier == "local"
    with pytest.raises(UnreadableBlockError, match="digest"):
        read_block(reference, stored.plan(verify_digests=True))


class Breaking:
    """An agent that sends ``pieces``, one per request, and breaks the connection in the middle of the answer."""

    def __init__(self, answers: list[Callable[[int], bytes]]) -> None:
        self._answers = answers
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.starts: list[int] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Breaking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        self._socket.close()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._socket.accept()
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(65536)
                start = int(request.lower().split(b"range: bytes=")[1].split(b"-")[0])
                self.starts.append(start)
                connection.sendall(answer(start))


def partial(data: bytes, start: int, sent: int) -> bytes:
    head = f"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {start}-{len(data) - 1}/{len(data)}\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % (len(data) - start) + data[start : start + sent]


def test_download_continues_where_the_connection_broke(stored: Stored) -> None:
    reference = stored.add(*block({("a", 0): filler(2000, size=400)}))
    data = local_file(stored, reference).read_bytes()
    plan = stored.plan("agent")
    with Breaking([lambda s: partial(data, s, 300_000), lambda s: partial(data, s, len(data))]) as agent:
        read = read_block(reference, msgspec.structs.replace(plan, agent_urls={"h1": agent.url}))
    assert read.tier == "agent"
    assert agent.starts == [0, 300_000]


def test_agent_that_sends_a_block_too_slowly_does_not_hold_its_reader(
    stored: Stored, reference: BlockReference
) -> None:
    data = local_file(stored, reference).read_bytes()
    local_file(stored, reference).unlink()
    with service(dripping(partial(data, 0, 10), data[10:])) as url:
        read = read_block(reference, stored.plan("agent", "wal", agent_urls={"h1": url}, agent_timeout_seconds=0.5))
    assert read.tier == "wal"
    assert "Read timed out" in read.failures[0].detail


def test_short_time_out_does_not_keep_longer_requests_from_an_agent(stored: Stored, reference: BlockReference) -> None:
    """The driver waits half a second for the blocks of a small batch; a busy agent may answer what waits longer."""
    local_file(stored, reference).unlink()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        details = [
            read_block(reference, stored.plan("agent", "wal", agent_urls={"h1": url}, agent_timeout_seconds=seconds))
            .failures[0]
            .detail
            for seconds in (0.05, 0.1, 0.05, 0.1)
        ]
    assert ["did not answer" in detail for detail in details] == [False, False, True, True]


def test_streams_with_one_url_and_different_options_read_their_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Spark serves the tasks of several streams."""
    opened: list[object] = []
    monkeypatch.setattr(wal_tier, "open_storage", lambda url, options: opened.append(options) or object())
    first, second = (
        ReadPlan(wal_url="s3://wal/x", storage={"s3": {"endpoint_url": f"http://cluster{n}", "retries": 1}})
        for n in (1, 2)
    )
    same = ReadPlan(wal_url="s3://wal/x", storage={"s3": {"retries": 1, "endpoint_url": "http://cluster1"}})
    assert wal_tier.wal_of(first) is wal_tier.wal_of(same)
    assert wal_tier.wal_of(second) is not wal_tier.wal_of(first)
    assert opened == [first.storage, second.storage]


def test_silent_agent_is_asked_again_only_after_ten_seconds(
    stored: Stored, reference: BlockReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost host costs a task one time-out, whatever the number of its blocks there, and no retries."""
    clock = ManualClock()
    monkeypatch.setattr(agents, "_clock", clock)
    local_file(stored, reference).unlink()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts by its backlog, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        plan = stored.plan("agent", "wal", agent_urls={"h1": url}, agent_timeout_seconds=0.05)
        seen = [read_block(reference, plan) for _ in range(3)]
        clock.advance(AGENT_REST_SECONDS)
        seen.append(read_block(reference, plan))
        silent.settimeout(0.0)
        asked = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
    assert asked == 2
    assert [read.tier for read in seen] == ["wal"] * 4
    assert [[(f.tier, f.kind) for f in read.failures] for read in seen] == [[("agent", "unreachable")]] * 4
    assert ["did not answer" in read.failures[0].detail for read in seen] == [False, True, True, False]


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        lambda _: b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 0-1/99999999999\r\ncontent-length: 2\r\n\r\n01",
        lambda _: (
            b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 0-1/" + b"9" * 5000 + b"\r\ncontent-length: 2\r\n\r\n01"
        ),
        lambda _: b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 0-1/\xb2\r\ncontent-length: 2\r\n\r\n01",
        lambda _: b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 0-1/2\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n01",
        lambda _: (
            b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 0-1/2\r\ntransfer-encoding: chunked\r\n\r\n-" + b"f" * 20
        ),
        lambda _: b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 7-9/100\r\ncontent-length: 3\r\n\r\n789",
        lambda _: b"HTTP/1.1 206 Partial\r\ncontent-range: bytes 0-1/2\r\ncontent-length: 9\r\n\r\n012345678",
    ],
    ids=[
        "no range",
        "too long",
        "thousands of digits",
        "no digits",
        "negative chunk",
        "chunk below all",
        "another range",
        "more than said",
    ],
)
def test_invalid_answer_of_an_agent_is_refused(
    stored: Stored, reference: BlockReference, answer: Callable[[int], bytes]
) -> None:
    """INV-6: its answer does not decide how much memory is allocated."""
    with Breaking([answer]) as agent:
        read = read_block(reference, stored.plan("agent", "wal", agent_urls={"h1": agent.url}))
    assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("agent", "damaged")])
    assert "agent " in read.failures[0].detail or "not the block's length" in read.failures[0].detail


def test_overloaded_agent_counts_as_unreachable_not_damaged(stored: Stored, reference: BlockReference) -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n01"
    with Breaking([lambda _: busy]) as agent:
        read = read_block(reference, stored.plan("agent", "wal", agent_urls={"h1": agent.url}))
    assert (read.tier, [(f.tier, f.kind) for f in read.failures]) == ("wal", [("agent", "unreachable")])
    assert "HTTP 503" in read.failures[0].detail


def test_references_and_plans_can_be_pickled_and_are_small(reference: BlockReference, stored: Stored) -> None:
    plan = stored.plan(agent_urls={"h1": "http://h1:7081"}, lost=frozenset({"x"}))
    assert pickle.loads(pickle.dumps((reference, plan))) == (reference, plan)
    assert len(pickle.dumps(reference)) < 1000


def test_reading_loads_neither_spark_nor_a_service() -> None:
    """What a task imports is what every Python worker pays for, and a service never runs in one."""
    code = (
        "import sys, wal.reading, driver.batches.tasks.reading\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "drivers = {name for name in sys.modules if name.startswith('driver.')}\n"
        "assert not roots & {'pyspark', 'receiver', 'executor_agent', 'deploy', 'confluent_kafka', 'litestar'}, roots\n"
        "assert drivers == {'driver.batches', 'driver.batches.tasks', 'driver.batches.tasks.reading'}, drivers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_blocks_with_and_without_headers_read_alike_where_headers_are_wanted(stored: Stored) -> None:
    """The setting may have changed while blocks waited: one batch then holds both kinds."""
    without = stored.add(*block({("a", 0): filler(3)}, headers=False, sequence=1))
    with_ = stored.add(*block({("a", 0): filler(3)}, headers=True, sequence=2))
    plan = stored.plan(headers=True)
    one, other = (read_block(reference, plan).batches[0] for reference in (without, with_))
    assert one.schema == other.schema
    assert one.column("headers").null_count == 3
