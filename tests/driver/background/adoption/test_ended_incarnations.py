"""Adoption in an incarnation that must end: of a log that was cut back, or of a topic created again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker import Tracker
from forebay import messages as m
from forebay.model.errors import RefusedError
from forebay.model.identifiers import numbered
from tests.support.state.orphans import Stream
from tests.support.state.tracked import STREAM, TOPIC, tracker_options


def test_contiguous_orphans_of_an_ending_incarnation_are_adopted_first() -> None:
    """Records of the old incarnation are taken in under it; then the new one begins at the offset of the fault."""
    t = Stream(on_gap="record", topic_id="id-2")
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 70, token), checked=True)
    fault: dict[str, Any] = {"kind": "recreated", "topic_id": "id-2", "low": 0}
    t.faulted(**fault)
    t.round()
    assert (t.partition.incarnation.number, t.partition.position) == (1, 70)
    t.faulted(**fault)
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 0)


def test_truncated_log_is_adopted_in_the_old_incarnation_and_begins_a_new_one_where_it_was_cut() -> None:
    """What Kafka holds beyond the cut are other records: they come in under the new incarnation, also below the adopted ones."""
    t = Stream(on_gap="record")
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 70, token))
    fault: dict[str, Any] = {"kind": "truncated", "low": 0, "high": 60}
    first = t.register("r3", "i3")
    t.take_in(first, t.claim(first, receiver="r3").view.token, 65, receiver="r3")
    t.faulted(**fault)
    t.beat(first, "r3")
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(65, 70)]
    t.faulted(**fault)
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)


def cut_back(on_gap: str, *held: tuple[int, int]) -> Stream:
    """r2 took records in up to 65; then the log was cut back to 60, as only the watermarks show. ``held``: orphans."""
    t = Stream(on_gap=on_gap)
    epoch, token = t.dead_writer()
    for begin, end in held:
        t.orphan(epoch, (0, begin, end, token))
    first = t.register("r3", "i3")
    t.take_in(first, t.claim(first, receiver="r3").view.token, 65, receiver="r3")
    t.beat(first, "r3")
    t.faulted(low=0, high=60)
    t.beat(first, "r3")
    return t


def orders(t: Stream, receiver: str = "r2") -> list[str]:
    return [c.kind for c in t.beat(t.state.receivers[receiver].epoch, receiver)]


def test_adoption_does_not_hide_that_the_incarnation_must_end() -> None:
    """INV-5: the log has grown past the adopted offsets meanwhile, so a receiver that claims there finds nothing amiss, and
    the new records between the cut and there would never be read."""
    t = cut_back("record", (65, 70))
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(65, 70)]
    assert not t.claim(t.state.receivers["r2"].epoch, receiver="r2").granted
    assert orders(t) == []
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)
    assert (t.partition.fault, orders(t)) == (None, ["reclaim"])
    assert t.claim(t.state.receivers["r2"].epoch, receiver="r2").view.position == 60


def test_gap_before_an_orphan_does_not_hide_that_the_incarnation_must_end() -> None:
    t = cut_back("record", (68, 70))
    t.round()
    assert ([(g.gap.from_offset, g.gap.until_offset) for g in t.partition.gaps], t.partition.position) == (
        [(65, 68)],
        68,
    )
    assert (t.partition.fault.position, t.partition.fault.accepted_until) == (68, 60)
    assert not t.claim(t.state.receivers["r2"].epoch, receiver="r2").granted
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(68, 70)]
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)
    assert orders(t) == ["reclaim"]


def test_with_stop_an_adopted_incarnation_ends_when_an_operator_accepts_it() -> None:
    """The answer to a receiver, and the status, say why it waits."""
    t = cut_back("stop", (65, 70))
    token = t.partition.token
    t.round()
    again = m.Fault(
        receiver_id="r2", epoch=t.state.receivers["r2"].epoch, topic=TOPIC, partition=0, token=token,
        kind="out-of-range", position=65, low=0, high=60,
    )  # fmt: skip
    answer = t.say(again)
    assert not answer.proceed
    assert "accept-gap t/0 70 60`" in answer.message and "a new incarnation begins at 60" in answer.message
    assert "forebay-adoption" not in answer.message
    with pytest.raises(RefusedError, match="only after the WAL has been searched"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=70, until_offset=60))
    t.round()
    assert not t.claim(t.state.receivers["r2"].epoch, receiver="r2").granted
    t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=70, until_offset=60))
    assert (t.partition.incarnation.number, t.partition.position, orders(t)) == (2, 60, ["reclaim"])


@pytest.mark.parametrize("step", ["report", "release", "none"])
def test_a_driver_that_starts_over_after_adoption_still_ends_the_incarnation(step: str) -> None:
    """INV-7: from the events alone, wherever the older driver was killed."""
    t = cut_back("record", (65, 70))
    t.round(until_step=step)
    state = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(state, event)
    t.state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    t.tracker = Tracker(t.state, numbered(1, 2), tracker_options(on_gap="record"))
    adopter = t.new_adopter("d2")
    for _ in range(3):
        if t.partition.incarnation.number == 1:
            epoch = t.register("r2", "i2")
            assert not t.claim(epoch, receiver="r2").granted
        t.beat(t.state.receivers["r2"].epoch, "r2")
        t.round(adopter)
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)
