"""A journal with numbers beyond their bounds, as releases before the bounds wrote them, opens, says so, and loses nothing."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from driver.journal import events as ev
from driver.journal.log import bounds, opening
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.tracker.requests import Allocate, Complete, FoundPartitions
from forebay import messages as m
from forebay.model.bounds import OFFSET_MAX, TEXT_LENGTH_MAX, Number, Offset
from forebay.model.errors import ForebayError, UsageError
from tests.support.state.tracked import STREAM, TOPIC, Tracked, offsets
from wal.storage import MemoryStorage, Storage

numbers = itertools.count(1)

Change = Callable[[dict[str, Any]], object]


def taken_in() -> list[ev.Event]:
    """Blocks of [0, 10) and [10, 20) in a completed batch."""
    t = Tracked(1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    t.take_in(epoch, token, 20)
    t.complete(t.batch())
    return t.events


def old_journal(events: list[Any], snapshot: bool = False) -> Storage:
    """What an older release wrote of ``events``; ``snapshot``: as the state that they make."""
    storage = MemoryStorage(f"memory://bounds-{next(numbers)}")
    led, _ = opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(numbers))
    led.append(events)
    led.sync()
    led.close()
    return storage


def changed(change: Change) -> list[Any]:
    """:func:`taken_in` as plain data, the last block's range changed."""
    events = [msgspec.to_builtins(event) for event in taken_in()]
    added = [event for event in events if event["event"] == "block-added"]
    change(added[-1]["block"]["meta"]["ranges"][0])
    return events


def opened(storage: Storage) -> State:
    return opening.lead(storage, STREAM, "test", 2_000, lambda: 1.0, lambda: next(numbers))[1]


def test_range_beyond_the_last_offset_begins_a_new_incarnation_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka's records from offset 10 on are taken in; none is skipped."""
    storage = old_journal(changed(lambda r: r.update(until=2**64 - 1)))
    with caplog.at_level(logging.ERROR):
        state = opened(storage)
    partition = state.partitions[f"{TOPIC}/0"]
    assert (
        partition.incarnation.number,
        partition.incarnation.start,
        partition.position,
        partition.completed,
    ) == (2, 10, 10, 10)
    assert partition.incarnation.topic_id == "id-1" and not partition.owner
    assert partition.incarnations[0].end == OFFSET_MAX
    assert "18446744073709551615" in caplog.text and "begins at offset 10" in caplog.text
    assert "r1-" in partition.incarnation.cause  # and the block is named where `forebay audit` looks

    caplog.clear()
    again = opened(storage)  # moved numbers stay within bounds, and are logged once
    assert again == state and not caplog.text


def test_completed_batch_of_such_a_range_stays_completed() -> None:
    state = opened(old_journal(changed(lambda r: r.update(until=2**64 - 1))))
    assert state.completed_number == state.batch_count == 1
    assert not state.waiting


@pytest.mark.parametrize("leader_epoch", [2**31, 2**40, 2**64 - 1, -(2**40)])
def test_leader_epoch_out_of_range_leaves_the_one_before(leader_epoch: int) -> None:
    state = opened(old_journal(changed(lambda r: r.update(leader_epoch=leader_epoch))))
    partition = state.partitions[f"{TOPIC}/0"]
    assert (partition.leader_epoch, partition.incarnation.number, partition.position) == (0, 1, 20)
    assert [b.meta.records for b in state.blocks.values()] == [10, 10]


def test_text_that_is_too_long_is_cut_and_nothing_else_changes(caplog: pytest.LogCaptureFixture) -> None:
    events = [msgspec.to_builtins(event) for event in taken_in()]
    for event in events:
        if event["event"] == "block-added":
            event["block"]["meta"]["key_id"] = "k" * 5_000
    with caplog.at_level(logging.ERROR):
        state = opened(old_journal(events))
    partition = state.partitions[f"{TOPIC}/0"]
    assert (partition.incarnation.number, partition.position) == (1, 20)
    assert [(b.meta.key_id, b.meta.records) for b in state.blocks.values()] == [("k" * TEXT_LENGTH_MAX, 10)] * 2
    assert "meta.key_id has 5000 characters, of at most 1000: cut" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(until=2**63, records=2**63 - 10),
        lambda r: r.update(until=2**64 - 1, records=2**64 - 11, bytes=2**64 - 1, max_timestamp_ms=2**64 - 1),
        lambda r: r.update(until=2**64 - 1, incarnation=1, leader_epoch=2**63),
    ],
)
def test_several_numbers_out_of_range_together_open(change: Change) -> None:
    def whole(r: dict[str, Any]) -> None:
        change(r)

    events = changed(whole)
    for event in events:
        if event["event"] == "block-added":
            meta = event["block"]["meta"]
            meta["records"] = sum(r["records"] for r in meta["ranges"])
    state = opened(old_journal(events))
    assert state.partitions[f"{TOPIC}/0"].position == 10
    assert sum(block.meta.records for block in state.blocks.values()) == 10


def test_snapshot_with_numbers_out_of_range_opens() -> None:
    """And what goes on from it: the batch is completed in an event after the snapshot."""
    tree = msgspec.to_builtins(opened(old_journal(taken_in())))
    tree["partitions"][f"{TOPIC}/0"].update(position=2**64 - 1, completed=2**64 - 1, leader_epoch=2**40)
    newest = max(tree["blocks"].values(), key=lambda block: block["meta"]["sequence"])
    newest["meta"]["ranges"][0].update(until=2**64 - 1)
    found = bounds.decode(msgspec.msgpack.encode(tree), State)
    assert found is not None
    state, said = found
    assert len(said) == 4
    (sentence,) = bounds.begin_again(state)
    assert "incarnation 2 begins at offset 10" in sentence
    assert state.partitions[f"{TOPIC}/0"].position == 10
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) == state


def test_partition_whose_wrong_block_is_deleted_begins_again_at_its_incarnation() -> None:
    state = opened(old_journal(taken_in()))
    state.blocks.clear()
    state.partitions[f"{TOPIC}/0"].position = OFFSET_MAX
    bounds.begin_again(state)
    assert state.partitions[f"{TOPIC}/0"].position == 0


def test_partition_begins_again_within_its_newest_incarnation() -> None:
    """An incarnation before it claimed too much as well."""
    state = opened(old_journal(changed(lambda r: r.update(until=2**64 - 1))))
    partition = state.partitions[f"{TOPIC}/0"]
    partition.incarnations[-1] = msgspec.structs.replace(partition.incarnation, start=15)
    partition.position = OFFSET_MAX
    (sentence,) = bounds.begin_again(state)
    assert "incarnation 3 begins at offset 15" in sentence
    assert partition.position == 15


def test_numbers_of_a_pair_are_moved_within_bounds() -> None:
    """As the journal keeps a cursor's place: incarnation and offset."""
    found = bounds.decode(msgspec.msgpack.encode({"t/0": [1, 2**64 - 1]}), dict[str, tuple[Number, Offset]])
    assert found is not None
    assert found[0] == {"t/0": (1, OFFSET_MAX)}
    assert len(found[1]) == 1


def test_events_of_a_newer_release_are_still_refused_as_such() -> None:
    with pytest.raises(ForebayError, match="the event is of a newer release"):
        opened(old_journal([*taken_in(), {"event": "not-known-yet"}]))


def test_journal_within_bounds_is_read_as_ever() -> None:
    storage = old_journal(taken_in())
    assert journal.read(storage, STREAM).corrections == ()
    state = opened(storage)
    assert (state.partitions[f"{TOPIC}/0"].position, state.partitions[f"{TOPIC}/0"].incarnation.number) == (20, 1)
    assert bounds.decode(msgspec.msgpack.encode(taken_in()), tuple[ev.Event, ...]) is None


def test_stream_goes_on_after_it() -> None:
    """A receiver claims the new incarnation and takes in what the lying range covered; a batch of it runs."""
    state = opened(old_journal(changed(lambda r: r.update(until=2**64 - 1))))
    t = Tracked(1)
    t.state, t.tracker.recorder.state = state, state
    assert not t.say(FoundPartitions((), 1, "none"))
    epoch = t.register("r2", "i2")
    view = t.claim(epoch, receiver="r2").view
    assert (view.position, view.incarnation) == (10, 2)
    block = t.block(epoch, [offsets(10, 30, view.token, incarnation=2)], receiver="r2")
    assert t.report(epoch, block, receiver="r2")[0].accepted
    t.say(Complete(int(t.say(Allocate(1, 1))), 2, 1))
    assert state.partitions[f"{TOPIC}/0"].completed == 30


def test_fault_at_the_last_offset_is_refused_and_not_journalled() -> None:
    """What accepting would do, one offset further, could not be read back."""
    t = Tracked(1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    assert t.report(epoch, t.block(epoch, [offsets(0, OFFSET_MAX, token, records=0)]))[0].accepted
    fault = m.Fault(
        receiver_id="r1", epoch=epoch, topic=TOPIC, partition=0, token=token, kind="corrupt", position=OFFSET_MAX, low=0,
        high=OFFSET_MAX,
    )  # fmt: skip
    with pytest.raises(UsageError, match="nothing is missing"):
        t.say(fault)
    assert opened(old_journal(t.events)).partitions[f"{TOPIC}/0"].position == OFFSET_MAX


@pytest.mark.parametrize("kind", ["", "other", "corrupt ", "x" * 1_000_000])
def test_fault_of_an_unknown_kind_is_refused(kind: str) -> None:
    fault = {
        "receiver_id": "r1",
        "epoch": 1,
        "topic": "t",
        "partition": 0,
        "token": 1,
        "position": 0,
        "low": 0,
        "high": 0,
    }
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\.kind`"):
        msgspec.convert({**fault, "kind": kind}, m.Fault)
