"""What receivers say of themselves is bounded: how many ids, how long their texts and lists (INV-6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver import receiver_limits
from driver.state import State
from driver.transitions import apply
from forebay import messages as m
from forebay.errors import FencedError, RefusedError
from forebay.values import TEXT_LENGTH_MAX
from tests.support.tracked import STREAM, TOPIC, Tracked

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


def test_of_a_heartbeat_one_status_of_each_partition_of_the_stream_is_kept() -> None:
    t = Tracked(1)
    epoch = t.register()
    strange = [{**STATUS, "topic": f"no-{number}"} for number in range(50)]
    held = [{"topic": TOPIC, "partition": 0, "token": token} for token in (7, 3, 9)]
    t.say(beat(epoch, partitions=[*strange, STATUS, {**STATUS, "position": 5, "detail": "why"}], holding=held))
    kept = t.tracker.receiver_news["r1"].heartbeat
    assert [(p.topic, p.position, p.detail) for p in kept.partitions] == [(TOPIC, 5, "")]
    assert [h.token for h in kept.holding] == [3]


def test_heartbeats_of_more_receivers_are_refused_until_one_was_silent_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver_limits, "HEARD_MAX", 2)
    t = Tracked(1)
    epochs = {f"r{number}": t.register(f"r{number}") for number in range(3)}
    t.say(beat(epochs["r0"], "r0"))
    t.now_ms += 1_000
    t.say(beat(epochs["r1"], "r1"))
    with pytest.raises(RefusedError, match="2 receivers sent a heartbeat within the last 3600 s") as refused:
        t.say(beat(epochs["r2"], "r2"))
    assert refused.value.code == "too-many"
    t.now_ms += 1_000
    t.say(beat(epochs["r0"], "r0"))  # those that are known go on
    t.now_ms += 3_600_000
    t.say(beat(epochs["r2"], "r2"))
    assert t.tracker.receiver_news.keys() == {"r0", "r2"}  # r1 was silent the longest


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
        t.look(idle, receiver="idle")
    t.claim(newer, 0, "newer")
    events = len(t.events)
    with pytest.raises(RefusedError, match="knows 3 receiver ids") as refused:
        t.register("another")
    assert refused.value.code == "too-many" and len(t.events) == events
    assert t.register("owner", "i2") > newer
    replayed = State(stream=STREAM, lineage=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state
