"""``offsets reset``: a life ends when no writer can sync a block under a token of it any more, and not before (INV-2, INV-4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from driver.background.resetting import Resetting
from driver.journal import events as ev
from driver.tracker.requests import EndHold, HoldForReset, Reset
from forebay import messages as m
from forebay.model.errors import RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from tests.support.tracked import TOPIC, Tracked, offsets, tp


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

    def topic_ids(self, topics: Any) -> dict[str, str]:
        return dict.fromkeys(topics, self.ids.pop(0))

    def starting_offsets(self, policy: Any, partitions: Any, group: str) -> dict[TopicPartition, int]:
        self.asked.append(policy)
        self.after()
        return dict.fromkeys(partitions, 3 if policy == "earliest" else 50)


def resetting(t: Tracked, kafka: Any = None, wait_seconds: float = 0.0) -> Resetting:
    return Resetting(t.say, kafka or Kafka(), "g", threading.Event(), wait_seconds)


def test_what_the_receiver_has_on_its_way_is_accepted_before_the_life_ends() -> None:
    """INV-2: it is told to claim again, gets no claim, and says when nothing of the old token is left."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.beat(epoch, holding=(token,))
    assert "r1" in t.say(HoldForReset((tp(),)))
    commands = t.beat(epoch, holding=(token,))
    assert [(c.kind, c.partitions) for c in commands] == [("reclaim", (tp(),))]
    with pytest.raises(RefusedError, match="may still write"):
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


def test_a_block_of_the_old_life_that_comes_late_changes_nothing() -> None:
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


def test_a_receiver_that_is_gone_is_waited_for_until_its_epoch_ends() -> None:
    t = Tracked()
    epoch = t.register()
    t.claim(epoch)
    assert "start it again" in t.say(HoldForReset((tp(),)))
    t.register(instance="i2")
    assert t.say(HoldForReset((tp(),))) == ""


def test_a_partition_in_trouble_is_not_reset_before_the_wal_was_searched() -> None:
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
    t.search_in_vain(epoch)
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
    """Or what was on its way would come a second time in the new life, though nobody asked for it."""
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
    ("more", "words"),
    [
        ({"topic": "x", "to": "latest"}, "it has t/0, t/1"),
        ({"partition": 7, "to": "latest"}, "the stream has no partition t/7"),
        ({"to": "offset", "value": 3}, "name one"),
        ({"to": "sideways"}, "allowed are"),
        ({"to": "time"}, "allowed are"),
        ({"partition": 0, "to": "offset", "value": -3}, "allowed are"),
    ],
)
def test_a_wrong_request_is_told_in_a_sentence(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resetting(Tracked()).run(m.ResetRequest(**{"topic": TOPIC, **more}))
