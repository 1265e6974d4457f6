"""``offsets reset``: an incarnation ends when, and not before, no writer can sync a block under its tokens (INV-2, INV-4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from driver.background.resetting import Resetting
from driver.journal import events as ev
from driver.tracker.requests import EndHold, HoldForReset, Reset
from forebay import messages as m
from forebay.model.errors import RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from tests.support.state.tracked import TOPIC, Tracked, offsets, tp


def start(offset: int = 5, partition: int = 0) -> ev.IncarnationStart:
    return ev.IncarnationStart(TOPIC, partition, offset, "id-1")


def incarnations(t: Tracked, partition: int = 0) -> list[tuple[int, int, int | None]]:
    return [
        (incarnation.number, incarnation.start, incarnation.end)
        for incarnation in t.state.partitions[f"t/{partition}"].incarnations
    ]


class Kafka:
    """Offsets from 3 to 50; ``after``: called when it was asked for them."""

    def __init__(self) -> None:
        self.ids = ["id-1"] * 10
        self.asked: list[Any] = []
        self.after: Callable[[], None] = lambda: None

    def listed_topic_ids(self, topics: Any) -> dict[str, str]:
        return dict.fromkeys(topics, self.ids.pop(0))

    def starting_offsets(self, policy: Any, partitions: Any, group: str) -> dict[TopicPartition, int]:
        self.asked.append(policy)
        self.after()
        return dict.fromkeys(partitions, 3 if policy == "earliest" else 50)


def resetting(t: Tracked, kafka: Any = None, wait_seconds: float = 0.0) -> Resetting:
    return Resetting(t.ask, kafka or cast(Any, Kafka()), "g", threading.Event(), wait_seconds)


def test_reports_under_way_are_accepted_before_the_incarnation_ends() -> None:
    """INV-2: the receiver is ordered to claim again, gets no claim, and reports when it has released the old token."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.beat(epoch, holding=(token,))
    assert "r1" in t.say(HoldForReset((tp(),)))
    commands = t.beat(epoch, holding=(token,))
    assert [(c.kind, c.partitions) for c in commands] == [("reclaim", (tp(),))]
    with pytest.raises(RefusedError, match="can write no more of its records"):
        t.say(Reset((start(),), "reset to offset 5", "me"))
    t.take_in(epoch, token, 20)  # still under the old token
    assert not t.claim(epoch).granted
    t.beat(epoch, seen=commands[0].version)
    assert t.say(HoldForReset((tp(),))) == ""
    t.say(Reset((start(),), "reset to offset 5", "me"))
    assert incarnations(t) == [(1, 0, 20), (2, 5, None)]
    assert t.state.partitions["t/0"].incarnation.cause == "reset to offset 5 by me"
    assert not t.claim(epoch).granted
    t.say(EndHold((tp(),)))
    granted = t.claim(epoch)
    assert granted.granted and (granted.view.incarnation, granted.view.position) == (2, 5)


def test_late_block_of_the_old_incarnation_changes_nothing() -> None:
    """INV-4."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    late = t.block(epoch, [offsets(0, 9, token)])
    t.beat(epoch)
    t.say(HoldForReset((tp(),)))
    t.say(Reset((start(),), "reset to offset 5", "me"))
    (answer,) = t.report(epoch, late)
    assert not answer.accepted and answer.stale[0].reason == "life"


def test_reset_waits_for_a_missing_receiver_until_its_epoch_ends() -> None:
    t = Tracked()
    epoch = t.register()
    t.claim(epoch)
    assert "start it again" in t.say(HoldForReset((tp(),)))
    t.register(instance="i2")
    assert t.say(HoldForReset((tp(),))) == ""


def test_partition_with_a_fault_is_not_reset_before_the_wal_was_searched() -> None:
    """As a gap is not accepted before: the WAL may go on where Kafka does not."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    fault = m.Fault(
        receiver_id="r1", epoch=epoch, topic=TOPIC, partition=0, token=token, kind="out-of-range", position=0, low=40,
        high=50,
    )  # fmt: skip
    t.say(fault)
    t.beat(epoch)
    assert "searched" in t.say(HoldForReset((tp(),)))
    t.search_finding_nothing(epoch)
    assert t.say(HoldForReset((tp(),))) == ""
    t.say(Reset((start(45),), "reset to latest", "me"))
    assert t.state.partitions["t/0"].fault is None


def test_a_topic_is_reset_whole_or_not_at_all() -> None:
    t = Tracked()
    epoch = t.register()
    t.claim(epoch, 1)
    before = len(t.events)
    with pytest.raises(RefusedError, match="t/1 waits"):
        t.say(Reset((start(), start(5, 1)), "reset to offset 5", "me"))
    assert len(t.events) == before and incarnations(t) == [(1, 0, None)]


def test_without_apply_nothing_is_held_or_changed() -> None:
    t = Tracked()
    epoch = t.register()
    before = len(t.events)
    answer = resetting(t).run(m.ResetRequest(topic=TOPIC, to="earliest"))
    assert not answer.done
    assert [(p.partition, p.incarnation, p.position, p.start) for p in answer.partitions] == [
        (0, 2, 0, 3),
        (1, 2, 0, 3),
    ]
    assert len(t.events) == before
    assert t.claim(epoch).granted


def test_offsets_are_asked_for_when_all_writers_are_settled() -> None:
    """Otherwise records that were under way would be taken in twice, although no operator asked for it."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    kafka = Kafka()

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert not kafka.asked
            t.take_in(epoch, token, 20)
            t.beat(epoch)
            return False

    Resetting(t.say, kafka, "g", Stopping(), 9.0).run(  # type: ignore[arg-type]
        m.ResetRequest(topic=TOPIC, partition=0, to="latest", apply=True)
    )
    assert incarnations(t) == [(1, 0, 20), (2, 50, None)]
    assert t.claim(epoch).granted


def test_a_receiver_that_does_not_settle_in_time_leaves_all_as_it_was() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    with pytest.raises(RefusedError, match="nothing was changed"):
        resetting(t).run(m.ResetRequest(topic=TOPIC, partition=0, to="latest", apply=True))
    assert incarnations(t) == [(1, 0, None)]
    t.take_in(epoch, token, 20)
    assert t.claim(epoch).granted


def test_a_topic_that_is_created_again_meanwhile_is_asked_for_again() -> None:
    t, kafka = Tracked(), Kafka()
    kafka.ids = ["id-1", "id-2"]
    with pytest.raises(UnreachableError, match="changed"):
        resetting(t, kafka).run(m.ResetRequest(topic=TOPIC, to="earliest", apply=True))
    assert incarnations(t) == [(1, 0, None)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"topic": "x", "to": "latest"}, "it has t/0, t/1"),
        ({"partition": 7, "to": "latest"}, "the stream has no partition t/7"),
        ({"to": "offset", "value": 3}, "name one"),
        ({"to": "sideways"}, "allowed are"),
        ({"to": "time"}, "allowed are"),
        ({"partition": 0, "to": "offset", "value": -3}, "allowed are"),
    ],
)
def test_wrong_reset_request_is_refused_with_the_reason(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resetting(Tracked()).run(m.ResetRequest(**{"topic": TOPIC, **more}))
