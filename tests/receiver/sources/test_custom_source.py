"""Custom sources behind the Source protocol: step by step with a manual clock, and under the service's threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from forebay.model.columns import Columns, PartitionFault, Start
from forebay.model.errors import SettingsError, SourceError, UnreachableError, UsageError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from forebay.sources.custom import END_UNTOLD, CustomUpstream, dealt, make, ordinal_of
from forebay.sources.receiving import OffsetGone, Record, Records, ReliableSource, RetryLater, UnreliableSource
from receiver import inputs as inp
from receiver.main import compose
from receiver.sources.custom_records import source_batch
from receiver.sources.custom_source import ReliableAdapter, UnreliableAdapter, custom_source_of
from receiver.sources.source import CommitPoint, Source
from tests.receiver.fakes import FakeTracker
from tests.receiver.test_service import Running, settings_of, taken_in
from wal.storage.local import LocalStorage

A, B, Q = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("q", 0)


class Lists(ReliableSource):
    """Lists that may grow; an offset is an index. ``fails``: method → what it raises next."""

    def __init__(self, count: int = 0, names: Sequence[str] = ("a", "b")) -> None:
        self.lists = {name: [b"%s%d" % (name.encode(), n) for n in range(count)] for name in names}
        self.at: dict[str, int] = {}
        self.asked: list[Sequence[str]] = []
        self.acknowledged: dict[str, int] = {}
        self.forgotten: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.closed = False

    def _fail(self, method: str) -> None:
        if error := self.fails.pop(method, None):
            raise error

    def partitions(self) -> Sequence[str]:
        self._fail("partitions")
        return list(self.lists)

    def open(self, partition: str, offset: int) -> None:
        self._fail(f"open {partition}")
        self.at[partition] = offset

    def poll(self, partitions: Sequence[str], max_records: int, timeout_seconds: float) -> Mapping[str, Records]:
        self._fail("poll")
        self.asked.append(list(partitions))
        given: dict[str, list[Record]] = {}
        for name in partitions:
            at = self.at[name]
            own = self.lists[name][at : at + max(1, max_records // len(partitions))]
            if own:
                given[name] = [Record(value, offset=at + n) for n, value in enumerate(own)]
                self.at[name] += len(own)
        return given

    def acknowledge(self, positions: Mapping[str, int]) -> None:
        self._fail("acknowledge")
        self.acknowledged.update(positions)

    def forget(self, partitions: Sequence[str]) -> None:
        self.forgotten += partitions

    def end_offset(self, partition: str) -> int:
        self._fail("end_offset")
        return len(self.lists[partition])

    def close(self) -> None:
        self.closed = True


class Queue(UnreliableSource):
    """Returns each value once."""

    name: ClassVar[str] = "q"

    def __init__(self, count: int = 0, portion: int = 7) -> None:
        self.values = [b"%d" % n for n in range(count)]
        self.portion = portion
        self.begun = 0
        self.ended = False
        self.fails: Exception | None = None

    def start(self) -> None:
        self.begun += 1

    def poll(self, max_records: int, timeout_seconds: float) -> Records:
        if self.fails is not None and not self.values:
            raise self.fails
        count = min(self.portion, max_records)
        given, self.values = self.values[:count], self.values[count:]
        return [Record(value) for value in given]

    def stop(self) -> None:
        self.ended = True


class NotWhole(ReliableSource):
    def open(self, partition: str, offset: int) -> None: ...


class SaysNo(Lists):
    def __init__(self) -> None:
        raise ValueError("no folder is named")


class NamedBadly(Queue):
    name: ClassVar[str] = "a/b"


HERE = __name__


def settings_for(source: str = "Lists", count: int = 1, stream: str = "s", **options: object) -> Settings:
    return from_values(
        {
            "stream": stream,
            "wal": {"url": "file:///w"},
            "receiver": {"source": f"{HERE}:{source}", "count": count, "source_options": options},
            "driver": {"journal": "file:///j"},
            "agent": {"blocks": "/b"},
        }
    )


@dataclass
class HandClock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


@dataclass
class Heard:
    """A listener that keeps the assigned partitions."""

    owned: set[TopicPartition] = field(default_factory=set)
    words: list[tuple[str, list[TopicPartition]]] = field(default_factory=list)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.words.append(("assigned", list(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.words.append(("revoked", list(partitions)))

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        raise AssertionError("no receiver loses a partition without a revocation")


def reliable(own: Lists, count: int = 1, ordinal: int = 0) -> tuple[ReliableAdapter, Heard, HandClock]:
    clock, heard = HandClock(), Heard()
    own.ordinal = ordinal
    adapter = ReliableAdapter(settings_for(count=count), own, clock)
    adapter.subscribe(heard)
    return adapter, heard, clock


def unreliable(own: Queue) -> UnreliableAdapter:
    adapter = UnreliableAdapter(settings_for("Queue"), own, HandClock())
    adapter.subscribe(Heard())
    return adapter


def offsets(polled: Sequence[Any]) -> list[tuple[str, int, int, int]]:
    return [(c.tp.topic, c.generation, c.first_offset, c.last_offset) for c in polled if isinstance(c, Columns)]


def point(offset: int) -> CommitPoint:
    return CommitPoint(offset, -1, "forebay:1:1")


# ---- distribution ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_partitions_are_distributed_evenly_each_to_one_receiver(count: int) -> None:
    names = [f"n{number}" for number in range(10)]
    shares = [dealt(reversed(names), ordinal, count) for ordinal in range(count)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_receiver_id_gives_the_ordinal() -> None:
    """Two ids with one ordinal would claim the same partition in turns, and no registration would end one of them."""
    settings = settings_for(count=3)
    assert [ordinal_of(settings, f"s-r{n}") for n in range(3)] == [0, 1, 2]
    for wrong in ("s-r3", "host-1", "r0", "other-r0", "s-r01"):
        with pytest.raises(UsageError, match=r"allowed ids are s-r0 to s-r2"):
            ordinal_of(settings, wrong)


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("Nothing", {}, "has no class 'Nothing'"),
        ("HERE", {}, "has no class 'HERE'"),
        ("HandClock", {}, "must be a subclass of ReliableSource or UnreliableSource"),
        ("NotWhole", {}, r"lacks close, partitions, poll\(\)"),
        ("Lists", {"folder": "/x"}, r"the parameters of .* are \(count: .*unexpected keyword argument 'folder'"),
        ("SaysNo", {}, "ValueError: no folder is named"),
        ("NamedBadly", {}, "name = 'a/b'"),
    ],
)
def test_unusable_class_is_refused_with_the_reason(source: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make(settings_for(source, **options))


def test_module_that_cannot_be_imported_is_refused_with_the_reason() -> None:
    settings = settings_for()
    receiver = msgspec.structs.replace(settings.receiver, source="no_such_module:Class")
    with pytest.raises(SettingsError, match="module 'no_such_module' can't be imported: ModuleNotFoundError"):
        make(msgspec.structs.replace(settings, receiver=receiver))


def test_driver_asks_the_class_for_partitions_and_first_offsets() -> None:
    upstream = CustomUpstream(settings_for(count=5))
    assert upstream.partitions() == {A, B}
    assert upstream.starting_offsets("earliest", [A], "g") == {A: 0}
    assert upstream.starting_offsets({"a/0": 0}, [A, B], "g") == {A: 0, B: 0}
    with pytest.raises(UsageError, match=r"starting offset 1 of a/0: .* has 0 to 0"):
        upstream.starting_offsets({"a/0": 1}, [A], "g")
    assert upstream.topic_ids(["a"]) == {"a": ""} and upstream.ends([A]) == {A: 0}
    of_queue = CustomUpstream(settings_for("Queue", count=2))
    assert of_queue.partitions() == {TopicPartition("q", 0), TopicPartition("q", 1)}
    with pytest.raises(UsageError, match="has no end"):
        of_queue.ends([TopicPartition("q", 0)])


# ---- reliable sources ------------------------------------------------------------------------------------------------


def test_a_partition_is_read_from_where_it_was_started_under_that_generation() -> None:
    own = Lists(10)
    adapter, heard, _ = reliable(own)
    assert adapter.poll(100, 0) == [] and heard.words == [("assigned", [A, B])]
    adapter.start([Start(A, 4, -1, 7)])
    polled = adapter.poll(3, 0)
    assert offsets(polled) == [("a", 7, 4, 6)]
    assert isinstance(polled[0], Columns)
    assert polled[0].batch.schema == SOURCE_SCHEMA(False)
    adapter.start([Start(A, 2, -1, 8)])
    assert offsets(adapter.poll(3, 0)) == [("a", 8, 2, 4)], "a new claim may go back (rule 3)"
    assert own.asked == [["a"], ["a"]], "a partition that is not started is not polled"


def test_paused_partition_is_not_polled_and_start_ends_the_pause() -> None:
    own = Lists(10)
    adapter, _, _ = reliable(own)
    adapter.poll(1, 0)
    adapter.start([Start(A, 0, -1, 1), Start(B, 0, -1, 2)])
    adapter.pause([A])
    assert offsets(adapter.poll(2, 0)) == [("b", 2, 0, 1)]
    adapter.pause([B])
    assert adapter.poll(2, 0) == [] and own.asked == [["b"]], "all are paused, so poll is not called"
    adapter.start([Start(A, 0, -1, 3)])
    adapter.resume([B])
    assert {name for name, *_ in offsets(adapter.poll(4, 0))} == {"a", "b"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": [Record(b"", offset=4)]}, "a: it returned offset 4, which is below the next offset 5"),
        ({"a": [Record(b"", offset=6), Record(b"", offset=6)]}, "a: it returned offset 6 after 6; offsets must ascend"),
        ({"a": [Record(b"")]}, "a: it returned offset -1, which is below the next offset 5"),
        ({"a": [Record(b"", offset=2**62)]}, "above the limit"),
        ({"b": [Record(b"", offset=6)]}, "records of 'b', which was not in the call"),
        ({"a": [Record(b"", offset=n) for n in range(5, 9)]}, "4 records; max_records was 3"),
        ({"a": [b"bytes"]}, "a bytes where a Record belongs"),
        ({"a": [Record("text", offset=5)]}, "neither a list of Record"),  # type: ignore[arg-type]
        ({"a": b"bytes"}, "a bytes, neither a list of Record"),
        ([Record(b"", offset=5)], "not a mapping"),
        ({"a": pa.RecordBatch.from_pydict({"value": [b"x"]})}, "has no column offset"),
        ({"a": pa.RecordBatch.from_pydict({"value": [b"x"], "offset": pa.array([None], pa.int64())})}, "holds a null"),
    ],
)
def test_poll_that_breaks_its_contract_ends_the_receiver_with_the_reason(given: Any, words: str) -> None:
    """INV-5: records at offsets that were taken in before would be dropped as repeated."""
    own = Lists()
    adapter, _, _ = reliable(own)
    adapter.poll(1, 0)
    adapter.start([Start(A, 5, -1, 1)])
    own.poll = lambda *_: given  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=f":Lists: poll.*{words}"):
        adapter.poll(3, 0)


def test_retry_later_delays_the_next_call_and_is_shown() -> None:
    own = Lists(10)
    adapter, _, clock = reliable(own)
    own.fails["partitions"] = RetryLater("the share is not mounted")
    assert adapter.poll(1, 0) == [] and adapter.last_error.endswith("partitions(): the share is not mounted")
    clock.now += 10
    adapter.poll(1, 0)
    assert adapter.last_error == ""
    adapter.start([Start(A, 0, -1, 1)])
    own.fails["poll"] = RetryLater("later")
    adapter.poll(1, 0)
    first, clock.now = clock.now, clock.now + 0.11
    own.fails["poll"] = RetryLater("still")
    adapter.poll(1, 0)
    clock.now += 0.11
    assert adapter.poll(1, 0) == [] and adapter.last_error == "still", "the second delay is longer"
    clock.now = first + 1
    assert adapter.poll(1, 0) and adapter.last_error == ""


def test_partition_that_cannot_be_opened_yet_does_not_delay_others() -> None:
    own = Lists(4)
    adapter, _, clock = reliable(own)
    adapter.poll(1, 0)
    own.fails["open a"] = RetryLater("it is moved just now")
    adapter.start([Start(A, 0, -1, 1), Start(B, 0, -1, 2)])
    assert offsets(adapter.poll(4, 0)) == [("b", 2, 0, 3)] and adapter.last_error == "a: it is moved just now"
    clock.now += 1
    assert offsets(adapter.poll(4, 0)) == [("a", 1, 0, 1)] and adapter.last_error == ""


@pytest.mark.parametrize("where", ["open a", "poll"])
def test_offset_gone_is_a_fault_of_that_partition_alone(where: str) -> None:
    own = Lists(4)
    adapter, _, _ = reliable(own)
    adapter.poll(1, 0)
    adapter.start([Start(A, 2, -1, 1), Start(B, 0, -1, 2)])
    own.fails[where] = OffsetGone("a", "cut off")
    assert adapter.poll(4, 0) == [PartitionFault(A, 1, "out-of-range", "a: cut off")]
    assert offsets(adapter.poll(4, 0)) == [("b", 2, 0, 3)]
    own.fails["poll"] = OffsetGone("a", "cut off")
    with pytest.raises(SourceError, match="OffsetGone names partition 'a', which is not open"):
        adapter.poll(4, 0)


def test_any_other_exception_ends_the_receiver_and_names_the_method() -> None:
    own = Lists(4)
    adapter, _, _ = reliable(own)
    adapter.poll(1, 0)
    adapter.start([Start(A, 0, -1, 1)])
    own.fails["poll"] = KeyError("x")
    with pytest.raises(SourceError, match=r":Lists: poll\(\): KeyError: 'x'") as caught:
        adapter.poll(1, 0)
    assert isinstance(caught.value.__cause__, KeyError)
    own.fails["acknowledge"] = RuntimeError("no")
    with pytest.raises(SourceError, match=r"acknowledge\(\): RuntimeError: no"):
        adapter.commit({A: point(1)})


def test_partition_of_another_receiver_is_revoked_then_forgotten() -> None:
    """Rule 6. A later commit for it is refused, as Kafka refuses a former member of the group."""
    own = Lists(4, names=("a", "b", "c"))
    adapter, heard, clock = reliable(own, count=2)
    adapter.poll(1, 0)
    assert heard.words == [("assigned", [A, TopicPartition("c", 0)])]
    assert adapter.commit_sync({A: point(3), B: point(1)}, 1.0) == {B: "another receiver has it by now"}
    assert own.acknowledged == {"a": 3}
    adapter.start([Start(TopicPartition("c", 0), 0, -1, 1)])
    own.lists["0"] = []  # sorts first, so 0 and b belong to this receiver now
    clock.now += 60
    polled = adapter.poll(4, 0)
    assert heard.words[1:] == [("revoked", [A, TopicPartition("c", 0)]), ("assigned", [TopicPartition("0", 0), B])]
    assert own.forgotten == ["a", "c"] and polled == []


def test_failed_list_of_partitions_keeps_the_known_ones() -> None:
    source = Lists(4)
    adapter, heard, clock = reliable(source)
    adapter.poll(1, 0)
    adapter.start([Start(A, 0, -1, 1)])
    clock.now += 60
    source.fails["partitions"] = RetryLater("not now")
    assert offsets(adapter.poll(4, 0)) == [("a", 1, 0, 3)] and len(heard.words) == 1


def test_commit_acknowledges_and_is_repeated_after_retry_later() -> None:
    own = Lists()
    adapter, _, _ = reliable(own)
    adapter.poll(1, 0)
    own.fails["acknowledge"] = RetryLater("later")
    adapter.commit({A: point(3)})
    assert adapter.poll_commit_errors() == {A: "acknowledge(): later"} and adapter.poll_commit_errors() == {}
    adapter.commit({A: point(3)})
    assert own.acknowledged == {"a": 3} and adapter.poll_commit_errors() == {}


def test_watermarks_are_those_of_the_source_or_unknown() -> None:
    own = Lists(4)
    adapter, _, _ = reliable(own)
    assert adapter.watermarks(A, 1.0) == (0, 4) and adapter.high_watermark(A) == 4
    own.fails["end_offset"] = RetryLater("")
    assert adapter.high_watermark(A) == -1
    own.end_offset = lambda partition: -1  # type: ignore[method-assign]
    assert adapter.watermarks(A, 1.0) == (0, END_UNTOLD)
    own.end_offset = lambda partition: None  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(SourceError, match=r"end_offset\(\) returned None"):
        adapter.high_watermark(A)
    own.end_offset = lambda partition: (1 << 62) + 1  # type: ignore[method-assign]
    with pytest.raises(
        SourceError, match=rf"end_offset\(\) returned {(1 << 62) + 1}: it must be a whole number from -1 to {1 << 62}"
    ):
        adapter.watermarks(A, 1.0)
    own.fails["end_offset"] = RetryLater("")
    own.end_offset = Lists.end_offset.__get__(own)  # type: ignore[method-assign]
    with pytest.raises(UnreachableError):
        adapter.watermarks(A, 1.0)


# ---- unreliable sources ----------------------------------------------------------------------------------------------


def test_unreliable_records_are_numbered_from_the_claimed_position() -> None:
    adapter = unreliable(Queue(20))
    assert adapter.poll(100, 0) == [], "poll is not called before the claim"
    adapter.start([Start(Q, 40, -1, 3)])
    assert offsets(adapter.poll(100, 0)) == [("q", 3, 40, 46)]
    assert offsets(adapter.poll(5, 0)) == [("q", 3, 47, 51)]
    adapter.pause([Q])
    assert adapter.poll(5, 0) == []


def test_only_unaccepted_records_are_returned_again_under_a_new_claim() -> None:
    own = Queue(20)
    adapter = unreliable(own)
    adapter.start([Start(Q, 0, -1, 1)])
    first = [adapter.poll(100, 0)[0] for _ in range(2)]
    adapter.commit({Q: point(7)})
    adapter.start([Start(Q, 7, -1, 2)])
    again = [*adapter.poll(100, 0), *adapter.poll(100, 0)]
    assert offsets(again) == [("q", 2, 7, 13), ("q", 2, 14, 19)], "polled records keep their offsets"
    assert isinstance(again[0], Columns) and isinstance(first[1], Columns)
    assert again[0].batch is first[1].batch and own.begun == 1
    adapter.commit_sync({Q: point(20)}, 1.0)
    adapter.start([Start(Q, 20, -1, 3)])
    own.values = [b"new"]
    assert offsets(adapter.poll(100, 0)) == [("q", 3, 20, 20)]


def test_start_beyond_kept_records_numbers_from_there_and_keeps_them() -> None:
    """A machine that reports [0, 7) again starts at 7. If that report is refused too, [0, 7) must still be kept."""
    own = Queue(14)
    adapter = unreliable(own)
    adapter.start([Start(Q, 0, -1, 1)])
    adapter.poll(100, 0)
    adapter.start([Start(Q, 7, -1, 2)])
    assert offsets(adapter.poll(100, 0)) == [("q", 2, 7, 13)]
    adapter.start([Start(Q, 0, -1, 3)])
    assert offsets([*adapter.poll(100, 0), *adapter.poll(100, 0)]) == [("q", 3, 0, 6), ("q", 3, 7, 13)]


def test_accepted_records_are_dropped() -> None:
    """INV-2, INV-6: they are not kept for ever, and never returned again."""
    adapter = unreliable(Queue(20))
    adapter.start([Start(Q, 0, -1, 1)])
    adapter.poll(100, 0)
    adapter.poll(100, 0)
    adapter.commit({Q: point(10)})
    adapter.start([Start(Q, 0, -1, 2)])
    assert offsets(adapter.poll(100, 0)) == [("q", 2, 7, 13)], "only a part of the second batch is accepted"


def test_stop_is_called_also_without_start() -> None:
    own = Queue()
    adapter = unreliable(own)
    adapter.close()
    assert own.ended


# ---- columns ---------------------------------------------------------------------------------------------------------


def test_records_and_columns_give_the_same_rows() -> None:
    records = [
        Record(b"v", b"k", 5, 1000, (("h", b"1"), ("h", None))),
        Record(None, None, 9),
        Record(b"", b"", 10, 0),
    ]
    columns = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([5, 9, 10], pa.int32()),
            "value": pa.array([b"v", None, b""], pa.large_binary()),
            "key": pa.array(["k", None, ""]),
            "timestamp": pa.array([1000, -1, 0]),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, None],
                SOURCE_SCHEMA(True).field("headers").type,
            ),
        }
    )
    for headers in (False, True):
        batch = source_batch(records, headers)
        assert batch.schema == SOURCE_SCHEMA(headers)
        assert batch.to_pylist() == source_batch(columns, headers).to_pylist()
    assert batch.column("timestampType").to_pylist() == [0, -1, 0]
    bare = pa.RecordBatch.from_pydict({"value": ["x", "y"]})
    assert source_batch(bare, True, 3).column("offset").to_pylist() == [3, 4]
    assert source_batch(records, False, 3).column("offset").to_pylist() == [3, 4, 5]


def test_columns_do_not_change_when_the_source_fills_its_buffers_again() -> None:
    """A block shares memory with its records until it is written, and its checksums are made at different times."""
    values = bytearray(b"old1old2")
    sizes = pa.py_buffer(np.array([0, 4, 8], np.int32).tobytes())
    mine = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.binary(), 2, [None, sizes, pa.py_buffer(values)])], names=["value"]
    )
    batch = source_batch(mine, False, 0)
    values[:] = b"new1new2"
    assert batch.column("value").to_pylist() == [b"old1", b"old2"]


# ---- under the service's threads -------------------------------------------------------------------------------------


@pytest.fixture
def tracker() -> Iterator[FakeTracker]:
    with FakeTracker() as tracker:
        yield tracker


def run(tmp_path: Path, tracker: FakeTracker, source: Source, name: str = "Lists") -> Running:
    settings = settings_of(tmp_path, tracker.url)
    receiver = msgspec.structs.replace(settings.receiver, source=f"{HERE}:{name}")
    settings = msgspec.structs.replace(settings, receiver=receiver)
    return Running(compose(settings, "s-r0", source, LocalStorage(str(tmp_path / "wal")), SystemClock(), host="h"))


@pytest.mark.parametrize("name", ["Lists", "Queue"])
def test_refused_reports_lose_and_repeat_nothing_of_either_kind(
    tmp_path: Path, tracker: FakeTracker, name: str
) -> None:
    """INV-2, rule 4."""
    own, settings = (Lists(700), settings_for("Lists")) if name == "Lists" else (Queue(700), settings_for("Queue"))
    adapter: Source = (
        ReliableAdapter(settings, own, SystemClock())
        if isinstance(own, Lists)
        else UnreliableAdapter(settings, own, SystemClock())
    )
    prefixes = {A: b"a", B: b"b"} if name == "Lists" else {Q: b""}
    tracker.refuse = 4
    receiver = run(tmp_path, tracker, adapter, name)
    tracker.wait_for(lambda: all(tracker.positions.get(tp) == 700 for tp in prefixes))
    assert tracker.refuse == 0
    receiver.service.drain()
    assert receiver.ended() == 0
    assert taken_in(tmp_path, tracker) == {
        tp: [(n, b"%s%d" % (prefix, n)) for n in range(700)] for tp, prefix in prefixes.items()
    }
    assert own.closed if isinstance(own, Lists) else own.ended


def test_records_before_an_exception_are_accepted_and_the_driver_gets_the_reason(
    tmp_path: Path, tracker: FakeTracker
) -> None:
    """An unreliable source returns them once, so the receiver drains, and exits with 1."""
    own = Queue(300)
    own.fails = ValueError("the line broke")
    receiver = run(tmp_path, tracker, UnreliableAdapter(settings_for("Queue"), own, SystemClock()), "Queue")
    assert receiver.ended() == 1
    assert tracker.positions[Q] == 300
    words = f"{HERE}:Queue: poll(): ValueError: the line broke"
    assert any(words in note.words for beat in tracker.heartbeats for note in beat.errors)
    assert tracker.heartbeats[-1].detail == f"ends: {words}" and own.ended
    assert [(r.topic, r.partition) for r in tracker.released] == [("q", 0)]


def test_poll_in_progress_when_drain_begins_is_taken_in(tmp_path: Path, tracker: FakeTracker) -> None:
    """The driver may command a drain during a poll, and the source does not return the records again."""
    polled, go_on = threading.Event(), threading.Event()

    class Slow(Queue):
        def poll(self, max_records: int, timeout_seconds: float) -> Records:
            given = super().poll(max_records, timeout_seconds)
            if given:
                polled.set()
                go_on.wait(20)
            return given

    receiver = run(tmp_path, tracker, UnreliableAdapter(settings_for("Queue"), Slow(5), SystemClock()), "Queue")
    assert polled.wait(20)
    receiver.service.tell(inp.DrainRequested())  # as the answer to a heartbeat does, from its thread
    go_on.set()
    assert receiver.ended() == 0
    assert tracker.positions[Q] == 5


def test_custom_source_is_made_from_the_settings() -> None:
    adapter = custom_source_of(settings_for("Queue", count=3), "s-r2", SystemClock())
    heard = Heard()
    adapter.subscribe(heard)
    adapter.poll(1, 0)
    assert heard.words == [("assigned", [TopicPartition("q", 2)])]
