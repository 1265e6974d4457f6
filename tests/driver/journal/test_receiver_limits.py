"""What receivers say of themselves is bounded: how many ids, how long their texts and lists (INV-6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.decisions.clean_up import CleanSegment, is_stray
from driver.http.health import Grace, Health
from driver.journal import events as ev
from driver.journal import receiver_limits
from driver.journal.log import opening
from driver.journal.log.writing import Journal
from driver.journal.receiver_limits import IdLimits
from driver.journal.state import BrokenInvariant, State, is_fenced
from driver.journal.state_parts import OpenFault
from driver.journal.transitions import apply, receivers
from driver.tracker.requests import CleanedUp
from forebay import messages as m
from forebay.model.bounds import TEXT_LENGTH_MAX
from forebay.model.errors import FencedError, RefusedError
from forebay.model.values import Block
from tests.support.state.tracked import STREAM, TOPIC, Tracked
from wal.decisions.retention import FrameFacts, SegmentFacts
from wal.storage import MemoryStorage

LONG = "x" * (TEXT_LENGTH_MAX + 1)
STATUS = {"topic": TOPIC, "partition": 0, "token": 1, "state": "active", "position": 0, "high_watermark": 0}


def beat(epoch: int, receiver: str = "r1", **said: Any) -> m.HeartbeatRequest:
    fields = {"state": "active", "detail": "", "acknowledged": 0, "buffered_bytes": 0, "records": 0, **said}
    return msgspec.json.decode(
        msgspec.json.encode({"receiver_id": receiver, "epoch": epoch, **fields}), type=m.HeartbeatRequest
    )


@pytest.mark.parametrize(
    "said",
    [
        {"state": LONG},
        {"detail": LONG},
        {"release": LONG},
        {"second_host": LONG},
        {"refusing_hosts": [LONG]},
        {"refusing_hosts": ["h"] * 201},
        {"errors": [{"words": LONG, "count": 1, "seconds_ago": 1}]},
        {"errors": [{"words": "w", "count": 1, "seconds_ago": 1}] * 201},
        {"counters": {LONG: 1}},
        {"counters": {f"c{number}": 1 for number in range(201)}},
        {"partitions": [{**STATUS, "detail": LONG}]},
        {"partitions": [{**STATUS, "state": LONG}]},
        {"partitions": [{**STATUS, "topic": "t" * 250}]},
        {"partitions": [STATUS] * 100_001},
        {"holding": [{"topic": TOPIC, "partition": 0, "token": 1}] * 100_001},
    ],
    ids=lambda said: "-".join(said),
)
def test_heartbeat_beyond_the_limits_is_refused_by_its_type(said: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="length <= "):
        beat(1, **said)


@pytest.mark.parametrize("field", ["stream", "receiver_id", "host", "instance_id", "release"])
def test_registration_with_a_long_text_is_refused_by_its_type(field: str) -> None:
    texts = dict.fromkeys(("stream", "receiver_id", "host", "instance_id", "release"), "x") | {field: LONG}
    with pytest.raises(msgspec.ValidationError, match=f"length <= {TEXT_LENGTH_MAX} - at `\\$.{field}`"):
        msgspec.json.decode(msgspec.json.encode(texts), type=m.RegisterRequest)


def test_the_driver_keeps_one_status_of_each_partition_of_a_heartbeat() -> None:
    t = Tracked(1)
    epoch = t.register()
    strange = [{**STATUS, "topic": f"no-{number}"} for number in range(50)]
    held = [{"topic": TOPIC, "partition": 0, "token": token} for token in (7, 3, 9)]
    t.say(beat(epoch, partitions=[*strange, STATUS, {**STATUS, "position": 5, "detail": "why"}], holding=held))
    kept = t.tracker.receiver_heartbeats["r1"].heartbeat
    assert [(p.topic, p.position, p.detail) for p in kept.partitions] == [(TOPIC, 5, "")]
    assert [h.token for h in kept.holding] == [3]


def test_heartbeats_of_more_receivers_are_refused_until_one_was_silent_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver_limits, "HEARTBEATS_MAX", 2)
    t = Tracked(1)
    epochs = {f"r{number}": t.register(f"r{number}") for number in range(3)}
    t.say(beat(epochs["r0"], "r0"))
    t.now_ms += 1_000
    t.say(beat(epochs["r1"], "r1"))
    with pytest.raises(RefusedError, match="2 receivers sent one within the last 3600 s") as refused:
        t.say(beat(epochs["r2"], "r2"))
    assert refused.value.code == "too-many"
    t.now_ms += 1_000
    t.say(beat(epochs["r0"], "r0"))  # those that are known go on
    t.now_ms += 3_600_000
    t.say(beat(epochs["r2"], "r2"))
    assert t.tracker.receiver_heartbeats.keys() == {"r0", "r2"}  # r1 was silent the longest


def test_more_receiver_ids_than_the_limit_take_the_place_of_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that own, wrote, or had a block accepted stay; without an idle one a new id is refused, a known one is not."""
    monkeypatch.setattr(receiver_limits, "RECEIVERS_MAX", 3)
    t = Tracked(2)
    epoch = t.register("writer")
    t.take_in(epoch, t.claim(epoch, receiver="writer").view.token, 10, receiver="writer")
    idle = t.register("idle")
    owner = t.register("owner")
    t.claim(owner, 1, "owner")
    newer = t.register("newer")
    assert set(t.state.receivers) == {"writer", "owner", "newer"}
    with pytest.raises(FencedError, match="register first"):
        t.lookup(idle, receiver="idle")
    t.claim(newer, 0, "newer")
    events = len(t.events)
    with pytest.raises(RefusedError, match="has 3 receiver ids") as refused:
        t.register("another")
    assert refused.value.code == "too-many" and len(t.events) == events
    assert t.register("owner", "i2") > newer
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state


# ---- ids that are forgotten ------------------------------------------------------------------------------------------

#: from 2 ids on, forget those without a heartbeat for 10 minutes
FEW = IdLimits(kept=2)


def few(partitions: int = 1) -> Tracked:
    t = Tracked(partitions)
    t.tracker.receivers.id_limits = FEW
    return t


def pass_time(t: Tracked, seconds: int) -> None:
    """The driver is there all the while."""
    for _ in range(seconds // 30):
        t.now_ms += 30_000
        t.searches()


def release(t: Tracked, epoch: int, token: int, receiver: str) -> None:
    released = (m.Release(topic=TOPIC, partition=0, token=token),)
    t.say(m.ReleaseRequest(receiver_id=receiver, epoch=epoch, releases=released))


def clean_up(t: Tracked, block: Block) -> None:
    """Its batch is completed and in the history, and its segment deleted."""
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    t.copy()
    facts = SegmentFacts(block.handle.path, True, False, (FrameFacts(block.id, block.meta.ranges),))
    (delete,) = t.decide(CleanSegment(facts, block.meta.receiver_id, block.meta.epoch, t.now_ms)).actions
    t.say(CleanedUp(delete.number))


def replayed(t: Tracked) -> State:
    state = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(state, event)
    return state


def test_many_short_lived_ids_are_all_registered_and_few_are_kept() -> None:
    """As pods do: each takes a block in and ends. With the blocks deleted nothing of them is needed."""
    t = few()
    epochs = []
    for number in range(50):
        receiver = f"pod-{number}"
        epochs.append(t.register(receiver))
        token = t.claim(epochs[-1], receiver=receiver).view.token
        block = t.take_in(epochs[-1], token, 10 * (number + 1), receiver=receiver)
        release(t, epochs[-1], token, receiver)
        clean_up(t, block)
        pass_time(t, 600)
        assert len(t.state.receivers) <= FEW.kept + 1
    assert epochs == sorted(set(epochs))
    assert t.state.partitions[f"{TOPIC}/0"].position == 500
    assert replayed(t) == t.state


def test_a_returning_id_gets_a_higher_epoch_and_its_old_one_is_fenced() -> None:
    """INV-4. Of the forgotten epoch nothing counts, be it asked for, found in the WAL, or on a host."""
    t = few()
    old = t.register("r1", "i1")
    t.register("r2")
    pass_time(t, 600)
    assert not is_fenced(t.state, "r1", old) and not is_stray(t.state, f"r1-{old:x}-1")
    t.register("r3")
    assert set(t.state.receivers) == {"r3"}
    assert is_fenced(t.state, "r1", old) and is_stray(t.state, f"r1-{old:x}-1")
    with pytest.raises(FencedError, match="register first"):
        t.claim(old, receiver="r1", known=0)
    # an epoch that the state can't know of yet: it was given after the state was read
    assert not is_fenced(t.state, "r4", t.state.next_epoch())
    assert t.register("r1", "i1") > old
    assert is_fenced(t.state, "r1", old)
    with pytest.raises(FencedError, match="registered again since"):
        t.claim(old, receiver="r1", known=0)


@pytest.mark.parametrize("needed", ["claim", "writer", "block", "unbarred", "live", "reserved"])
def test_an_id_that_is_needed_is_not_forgotten(needed: str) -> None:
    t = few()
    name = "forebay-x" if needed == "reserved" else "r1"
    epoch = t.register(name)
    if needed in ("claim", "writer", "block", "unbarred"):
        token = t.claim(epoch, receiver=name).view.token
        if needed == "block":
            t.take_in(epoch, token, 10, receiver=name)
            release(t, epoch, token, name)
        elif needed == "writer":  # another one owns the partition, and the first may still write
            t.claim(t.register("r2"), receiver="r2")
        elif needed == "unbarred":
            t.register(name, "i2")
    t.register("other")
    pass_time(t, 600)
    if needed == "live":
        t.beat(epoch, name)
    t.register("new")
    assert name in t.state.receivers
    if needed in ("claim", "writer", "unbarred"):
        with pytest.raises(BrokenInvariant, match="INV-4"):
            apply(t.state, ev.ReceiversForgotten((name,)))


def test_a_driver_that_could_not_take_heartbeats_forgets_no_id() -> None:
    """The journal waited for space, say: each receiver seems silent for as long."""
    t = few()
    t.register("r1")
    t.register("r2")
    pass_time(t, 300)
    t.now_ms += 3_600_000
    t.register("r3")
    assert set(t.state.receivers) == {"r1", "r2", "r3"}
    pass_time(t, 600)
    t.register("r4")
    assert set(t.state.receivers) == {"r4"}


def test_the_oldest_registrations_are_forgotten_first_and_a_few_at_a_time() -> None:
    t = Tracked(1)
    t.tracker.receivers.id_limits = IdLimits(kept=4, at_once=2)
    for receiver in ("a", "b", "c"):
        t.register(receiver)
    t.register("d")
    t.register("a", "i2")
    pass_time(t, 600)
    t.register("e")
    assert set(t.state.receivers) == {"d", "a", "e"}


def test_a_segment_of_a_forgotten_receiver_can_be_deleted() -> None:
    """Its writer can append no more that counts: without this it would lie in the WAL for ever."""
    t = few()
    epoch = t.register("r1")
    path = f"{STREAM}/blocks/r1/{epoch:016x}/00000001.seg"
    request = CleanSegment(SegmentFacts(path, sealed=False, fenced=False, frames=()), "r1", epoch, t.now_ms)
    assert t.say(request).reasons == ("its writer may still append to it",)
    t.register("r2")
    pass_time(t, 600)
    t.register("r3")
    assert t.say(request).deletable


def test_forgotten_ids_are_durable_with_the_registration_that_they_make_room_for() -> None:
    """If it is killed before its sync, a driver has forgotten no id; after it, a snapshot and a replay have the same ids."""
    storage = MemoryStorage("memory://forgotten-ids")
    uids = iter(range(1, 100))

    def lead() -> tuple[Journal, State]:
        return opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))

    t = few()
    t.register("r1")
    t.register("r2")
    led, _ = lead()
    led.append(t.events)
    led.sync()
    before = len(t.events)
    pass_time(t, 600)
    t.register("r3")
    assert [type(event) for event in t.events[before:]] == [ev.ReceiversForgotten, ev.ReceiverRegistered]
    assert set(lead()[1].receivers) == {"r1", "r2"}
    led, _ = lead()
    led.append(t.events[before:])
    led.sync()
    for _ in range(2):  # from events, then from the snapshot
        assert lead()[1] == t.state
    assert set(t.state.receivers) == {"r3"}


def test_epochs_ended_before_a_refused_registration_are_journalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-7: the state counts them, so a journal without them could not be replayed."""
    monkeypatch.setattr(receiver_limits, "RECEIVERS_MAX", 2)
    t = few(2)
    killed = t.register("killed")
    t.take_in(killed, t.claim(killed, 0, "killed").view.token, 10, receiver="killed")
    owner = t.register("owner")
    t.take_in(owner, t.claim(owner, 1, "owner").view.token, 10, partition=1, receiver="owner")
    t.claim(owner, 0, "owner")
    pass_time(t, 600)
    request = m.RegisterRequest(stream=STREAM, receiver_id="new", host="h1", instance_id="i1", release="test")
    decision = t.decide(request)
    assert isinstance(decision.refusal, RefusedError) and decision.refusal.code == "too-many"
    (fenced,) = decision.events
    assert isinstance(fenced, ev.ReceiverFenced) and fenced.receiver_id == "killed"
    t.register("owner", "i2")
    assert replayed(t) == t.state


def test_status_shows_a_problem_before_ids_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_limits, "RECEIVERS_SHOWN", 3)
    t = Tracked(1)
    health = Health(t.tracker, Grace(30.0, 60.0), managed=False, since=t.now_ms / 1000)
    for receiver in ("r1", "r2"):
        t.register(receiver)
    assert "receiver-ids" not in [problem.kind for problem in health.look(t.now_ms / 1000).problems]
    t.register("r3")
    (problem,) = [problem for problem in health.look(t.now_ms / 1000).problems if problem.kind == "receiver-ids"]
    assert problem.cause == "the stream has 3 receiver ids; from 10000 on it takes no new one"
    assert "wal.retention" in problem.command


def test_receivers_that_are_killed_under_new_ids_for_years_are_fenced_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A killed one never says that it can't write any more. It stays known while its epoch may have to be barred."""
    monkeypatch.setattr(receivers, "UNBARRED_MAX", 3)
    t = few()
    for number in range(40):
        receiver = f"pod-{number}"
        epoch = t.register(receiver)
        block = t.take_in(epoch, t.claim(epoch, receiver=receiver).view.token, 10 * (number + 1), receiver=receiver)
        clean_up(t, block)
        pass_time(t, 600)
    assert len(t.state.receivers) <= FEW.kept + 1 + 3 + 1
    assert len(t.state.partitions[f"{TOPIC}/0"].writers) <= 3
    assert "pod-39" in t.state.receivers and replayed(t) == t.state


def test_neither_owners_nor_writers_of_faulty_partitions_are_fenced_to_free_ids() -> None:
    t = few(2)
    old = t.register("killed")
    t.claim(old, 0, "killed")
    t.claim(old, 1, "killed")
    owner = t.register("owner")
    t.claim(owner, 0, "owner")
    t.claim(owner, 1, "owner")
    t.state.partitions[f"{TOPIC}/0"].fault = OpenFault("recreated", 0, 0, True, "id-2", -1)
    pass_time(t, 600)
    t.register("new")
    assert t.state.receivers["killed"].epoch == old and t.state.receivers["owner"].epoch == owner
    t.state.partitions[f"{TOPIC}/0"].fault = None
    t.register("newer")
    assert t.state.receivers["killed"].epoch > old and t.state.receivers["owner"].epoch == owner
    with pytest.raises(FencedError, match="registered again since"):
        t.lookup(old, receiver="killed")
