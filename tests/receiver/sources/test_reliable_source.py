"""Reliable custom sources behind the Source protocol, step by step with a manual clock."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from forebay.model.columns import Columns, PartitionFault, Start
from forebay.model.errors import SourceError, UnreachableError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from forebay.sources.custom import UNREPORTED_END
from forebay.sources.receiving import OffsetGone, Record, RetryLater
from tests.support.state.custom_sources import A, B, Lists, offsets, point, reliable


def test_a_partition_is_read_from_where_it_was_started_under_that_generation() -> None:
    own = Lists(10)
    adapter, listener, _ = reliable(own)
    assert adapter.poll(100, 0) == [] and listener.calls == [("assigned", [A, B])]
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
    ("given", "message"),
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
def test_poll_that_breaks_its_contract_ends_the_receiver_with_the_reason(given: Any, message: str) -> None:
    """INV-5: records at offsets that were taken in before would be dropped as repeated."""
    own = Lists()
    adapter, _, _ = reliable(own)
    adapter.poll(1, 0)
    adapter.start([Start(A, 5, -1, 1)])
    own.poll = lambda *_: given  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=f":Lists: poll.*{message}"):
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


def test_partition_that_returns_before_it_could_be_forgotten_is_assigned_again() -> None:
    own = Lists(10)
    adapter, listener, clock = reliable(own)
    adapter.poll(1, 0)
    kept = own.lists.pop(B.topic)
    own.fails["forget"] = RetryLater("its file is locked")
    clock.now += 31
    adapter.poll(1, 0)
    assert listener.calls[-1] == ("revoked", [B]) and adapter.last_error.endswith("its file is locked")
    own.lists[B.topic] = kept
    clock.now += 1  # long before the next look at the partitions
    adapter.poll(1, 0)
    assert listener.calls[-1] == ("assigned", [B]) and own.forgotten == [B.topic]


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
    adapter, listener, clock = reliable(own, count=2)
    adapter.poll(1, 0)
    assert listener.calls == [("assigned", [A, TopicPartition("c", 0)])]
    assert adapter.commit_sync({A: point(3), B: point(1)}, 1.0) == {B: "another receiver has it by now"}
    assert own.acknowledged == {"a": 3}
    adapter.start([Start(TopicPartition("c", 0), 0, -1, 1)])
    own.lists["0"] = []  # sorts first, so 0 and b belong to this receiver now
    clock.now += 60
    polled = adapter.poll(4, 0)
    assert listener.calls[1:] == [("revoked", [A, TopicPartition("c", 0)]), ("assigned", [TopicPartition("0", 0), B])]
    assert own.forgotten == ["a", "c"] and polled == []


def test_failed_list_of_partitions_keeps_the_known_ones() -> None:
    source = Lists(4)
    adapter, listener, clock = reliable(source)
    adapter.poll(1, 0)
    adapter.start([Start(A, 0, -1, 1)])
    clock.now += 60
    source.fails["partitions"] = RetryLater("not now")
    assert offsets(adapter.poll(4, 0)) == [("a", 1, 0, 3)] and len(listener.calls) == 1


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
    assert adapter.watermarks(A, 1.0) == (0, UNREPORTED_END)
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
