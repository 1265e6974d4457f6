"""What the driver makes of agents' heartbeats: which copies it knows of, which may go, whom tasks ask."""

from __future__ import annotations

from typing import Any

import pytest

from driver.batches.batch_run import BatchRun
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker import agents
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.values import Block
from tests.support.state.shown import shown
from tests.support.state.tracked import STREAM, Tracked


def beat(tracked: Tracked, host: str = "h1", **fields: Any) -> tuple[str, ...]:
    """The blocks whose deletion is ordered in the answer to a heartbeat of ``host``."""
    fields = {"blocks": 1, "used_bytes": 0, "free_bytes": 0, "acknowledged": 0, **fields}
    fields = {"url": f"http://{host}:1", **fields}
    request = m.AgentHeartbeatRequest(host=host, instance_id="i", **fields)
    return tuple(
        name.removeprefix(f"{STREAM}/") for command in tracked.say(request).commands for name in command.blocks
    )


def taken_in(tracked: Tracked, blocks: int) -> list[Block]:
    epoch = tracked.register()
    token = tracked.claim(epoch).view.token
    return [tracked.take_in(epoch, token, 10 * (n + 1), local=True) for n in range(blocks)]


def done(tracked: Tracked, host: str = "h1") -> None:
    """The host has carried out its last command."""
    number = max(tracked.state.cleanups)
    assert beat(tracked, host, acknowledged=number) == ()


def test_blocks_with_a_damaged_copy_are_shown_and_go_with_their_block() -> None:
    """INV-5, INV-8: a damaged copy may be the last one; it is named as old, and deleted when nothing needs the block."""
    tracked = Tracked()
    (block,) = taken_in(tracked, 1)
    assert beat(tracked, damaged=(block.id,), damaged_blocks=7, old_blocks=(block.id,)) == ()
    assert tracked.tracker.agent_heartbeats["h1"].heartbeat.damaged == (block.id,)
    (agent,) = shown(tracked.tracker, 0.0).agents
    assert (agent.damaged, agent.damaged_blocks) == ((block.id,), 7)


# ---- room ------------------------------------------------------------------------------------------------------------


def test_a_host_that_is_short_of_room_gives_up_what_was_taken_in_last() -> None:
    """Batches read it last; and only what the journal names goes: so the WAL holds it."""
    tracked = Tracked()
    first, second, third = taken_in(tracked, 3)
    assert beat(tracked, short_bytes=0) == ()
    assert beat(tracked, short_bytes=1500) == (third.id, second.id)
    assert beat(tracked, short_bytes=1500) == (third.id, second.id), "repeated until it is done, and nothing more"
    done(tracked)
    assert [tracked.state.blocks[block.id].local for block in (first, second, third)] == [True, False, False]
    assert beat(tracked, short_bytes=5000) == (first.id,)
    done(tracked)
    assert beat(tracked, short_bytes=5000) == ()


def test_a_block_deleted_for_lack_of_room_is_deleted_by_no_later_clean_up() -> None:
    """INV-7: nor does a driver that reads the journal think otherwise."""
    tracked = Tracked()
    first, second = taken_in(tracked, 2)
    beat(tracked, short_bytes=1)
    again = State(stream=STREAM, timeline=1)
    for event in tracked.events:
        apply(again, event)
    assert (again.blocks, again.index) == (tracked.state.blocks, tracked.state.index)
    done(tracked)
    batch = tracked.batch()
    tracked.complete(batch)
    assert dict(tracked.state.index.superfluous["h1"]) == {first.id: None}
    assert not tracked.state.blocks[second.id].local


def test_blocks_of_another_host_are_not_deleted_here() -> None:
    tracked = Tracked()
    taken_in(tracked, 2)
    assert beat(tracked, host="h2", short_bytes=10_000) == ()


# ---- blocks that an agent cannot delete ----------------------------------------------------------------------------------


def tried(tracked: Tracked, *undeleted: Block, acknowledged: int = 0, **fields: Any) -> tuple[str, ...]:
    """The blocks to delete after the host has tried its last command, in which it could not delete ``undeleted``."""
    ids = tuple(block.id for block in undeleted)
    return beat(
        tracked, attempted=max(tracked.state.cleanups), acknowledged=acknowledged, undeleted=ids,
        undeleted_blocks=len(ids), undeleted_cause="cannot delete /b/1: Input/output error", **fields,
    )  # fmt: skip


def complete(tracked: Tracked) -> None:
    tracked.complete(tracked.batch())
    tracked.tracker.deletion.clean_local_copies()


def test_block_that_cannot_be_deleted_does_not_end_the_clean_up_of_its_host() -> None:
    """INV-8: it stays in the open clean-up, and is not journalled as deleted for good."""
    tracked = Tracked()
    epoch = tracked.register()
    token = tracked.claim(epoch).view.token
    first, second = (tracked.take_in(epoch, token, until, local=True) for until in (10, 20))
    complete(tracked)
    assert beat(tracked) == (first.id, second.id)
    assert tried(tracked, second) == (first.id, second.id), "nothing else is to delete: the command is repeated"
    third = tracked.take_in(epoch, token, 30, local=True)
    complete(tracked)
    assert beat(tracked) == (first.id, second.id), "not tried since: this agent or driver may be a new one"
    assert tried(tracked, second) == (second.id, third.id)
    (cleanup,) = tracked.state.cleanups.values()
    assert cleanup.blocks == (second.id, third.id)
    assert tried(tracked, second) == (second.id, third.id), "no new clean-up with each heartbeat"
    assert tracked.state.cleanup_count == 2
    done(tracked)
    assert not tracked.state.cleanups and not tracked.state.cleaning_blocks


def test_stray_block_that_cannot_be_deleted_begins_no_clean_up_with_each_heartbeat() -> None:
    tracked = Tracked()
    (block,) = taken_in(tracked, 1)
    stray = block.id.rpartition("-")[0] + "-0"
    assert beat(tracked, old_blocks=(stray,)) == (stray,)
    fields: dict[str, Any] = {"attempted": 1, "undeleted": (stray,), "undeleted_blocks": 1}
    for _ in range(3):
        assert beat(tracked, old_blocks=(stray,), **fields) == (stray,)
    assert tracked.state.cleanup_count == 1
    assert beat(tracked, short_bytes=1, **fields) == (stray, block.id), "room is made all the same"


def test_agent_that_names_only_some_of_many_undeleted_blocks_gets_no_further_clean_up() -> None:
    """Its disk is broken as a whole. The driver cannot know which blocks were deleted."""
    tracked = Tracked()
    _, second = taken_in(tracked, 2)
    assert beat(tracked, short_bytes=1) == (second.id,)
    assert beat(tracked, short_bytes=1, undeleted=(second.id,), undeleted_blocks=2) == (second.id,)
    assert tracked.state.cleanup_count == 1


def test_blocks_that_cannot_be_deleted_are_shown() -> None:
    tracked = Tracked()
    (block,) = taken_in(tracked, 1)
    beat(tracked, undeleted=(block.id,) * 200, undeleted_blocks=2000, undeleted_cause="cannot delete /b/1: EIO")
    (agent,) = shown(tracked.tracker, 0.0).agents
    assert (agent.undeleted, agent.undeleted_blocks) == ((block.id,) * 100, 2000)
    assert agent.undeleted_cause == "cannot delete /b/1: EIO"


# ---- copies that hosts were given ------------------------------------------------------------------------------------


def test_cached_copies_are_known_until_the_agent_reports_others() -> None:
    tracked = Tracked()
    beat(tracked, copies=("a", "b"))
    beat(tracked)
    assert tracked.tracker.agent_heartbeats["h1"].copies == ("a", "b"), "nothing said: as before"
    beat(tracked, copies=())
    assert tracked.tracker.agent_heartbeats["h1"].copies == ()


def test_tasks_get_the_hosts_of_cached_copies() -> None:
    """Hints alone: blocks, tasks and order are the journal's (INV-3)."""
    tracked = Tracked()
    first, second = taken_in(tracked, 2)
    batch = tracked.state.batches[tracked.batch()]
    taken = BatchRun.of(tracked.state, [batch], 0, False)
    (plain,), (with_copies,) = (
        list(taken.work(1, False, 1, 0, copies)) for copies in ({}, {second.id: ("h2", "h1"), "other": ("h3",)})
    )
    hosts = {reference.id: reference.hosts for task in with_copies.tasks for reference in task}
    assert hosts == {first.id: ("h1",), second.id: ("h1", "h2")}
    assert [[reference.id for reference in task] for task in with_copies.tasks] == [
        [reference.id for reference in task] for task in plain.tasks
    ]


def test_cached_copy_is_deleted_when_no_batch_reads_its_block() -> None:
    """INV-8: not before, and only there."""
    tracked = Tracked()
    first, second = taken_in(tracked, 2)
    batch = tracked.batch()
    assert beat(tracked, host="h2", old_blocks=(first.id,)) == ()
    tracked.complete(batch)
    assert beat(tracked, host="h2", old_blocks=(first.id, second.id)) == (first.id, second.id)
    done(tracked, "h2")
    assert tracked.state.blocks[first.id].local, "the receiver's own copy is elsewhere"
    assert dict(tracked.state.index.superfluous["h1"]) == {first.id: None, second.id: None}
    assert beat(tracked, old_blocks=(first.id,)) == (), "and a clean-up of its own deletes it"


# ---- what is shown, and who is asked ---------------------------------------------------------------------------------


def test_status_shows_load_requests_and_that_an_agent_drains() -> None:
    tracked = Tracked()
    beat(tracked, state="draining", load=1.5, requests=3, free_bytes=7, copies=("a",))
    (agent,) = shown(tracked.tracker, 1.0, 10.0).agents
    assert (agent.state, agent.load, agent.requests, agent.free_bytes, agent.copies) == ("draining", 1.5, 3, 7, 1)


# ---- clients with an agent's token -----------------------------------------------------------------------------------


def test_hosts_are_known_up_to_a_limit_and_one_that_was_silent_for_long_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-6: a token that is bound to no host makes no more of them than that."""
    monkeypatch.setattr(agents, "AGENTS_MAX", 2)
    tracked = Tracked()
    beat(tracked, host="h1")
    beat(tracked, host="h2")
    with pytest.raises(RefusedError, match="2 hosts have agents with a heartbeat within 3600 s, the maximum"):
        beat(tracked, host="h3")
    beat(tracked, host="h1")
    tracked.now_ms += int(agents.AGENT_FORGOTTEN_SECONDS * 1000) - 1
    beat(tracked, host="h1")
    with pytest.raises(RefusedError):
        beat(tracked, host="h3")
    tracked.now_ms += 1
    beat(tracked, host="h3")
    assert set(tracked.tracker.agent_heartbeats) == {"h1", "h3"}


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "file:///etc/passwd"},
        {"url": "http://"},
        {"url": "http://user:word@h1:1"},
        {"url": "http://h1:1/v1?x="},
        {"url": "http://[h1"},
        {"labels": ("a=b",) * 10_001},
        {"copies": ("a",) * 10_001},
        {"old_blocks": ("a" * 1_001,)},
        {"damaged": ("a",) * 10_001},
        {"damaged": ("a" * 1_001,)},
        {"release": "1" * 1_001},
    ],
)
def test_what_no_agent_says_of_itself_is_refused(fields: dict[str, Any]) -> None:
    tracked = Tracked()
    with pytest.raises(UsageError, match="host h1: "):
        beat(tracked, **fields)
    assert not tracked.tracker.agent_heartbeats


@pytest.mark.parametrize("host", ["", "..", "a/b", "a b", "h" * 1_000])
def test_a_host_is_a_name(host: str) -> None:
    with pytest.raises(UsageError):
        beat(Tracked(), host=host)


# ---- where a host is reached -----------------------------------------------------------------------------------------


def test_host_keeps_the_url_of_its_first_agent_while_that_sends_heartbeats() -> None:
    """Tasks send their token there: who has a token of any host's must not turn them to himself."""
    tracked = Tracked()
    beat(tracked, url="http://h1:1")
    tracked.now_ms += 29_000
    with pytest.raises(RefusedError, match="has an agent at http://h1:1, whose last heartbeat was 29 s ago") as refused:
        beat(tracked, url="http://elsewhere:1")
    assert refused.value.code == "other-url"
    assert tracked.tracker.agent_heartbeats["h1"].heartbeat.url == "http://h1:1"
    beat(tracked, url="http://h1:1")
    beat(tracked, "h2", url="http://elsewhere:1")
    tracked.now_ms += 30_000
    beat(tracked, url="http://elsewhere:1")
    assert tracked.tracker.agent_heartbeats["h1"].heartbeat.url == "http://elsewhere:1"


def test_agent_that_drained_leaves_its_hosts_url_to_the_next_one_immediately() -> None:
    tracked = Tracked()
    beat(tracked, url="http://h1:1", state="draining")
    beat(tracked, url="http://h1:2")
    assert tracked.tracker.agent_heartbeats["h1"].heartbeat.url == "http://h1:2"
