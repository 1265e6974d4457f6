"""The driver's decisions in a stream without a WAL: what is accepted, when copies go, where second ones are put."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.decisions.replay import RewindTo, plan, refuse
from driver.decisions.replica_hosts import HostSpace, replica_host
from driver.journal.state import State
from driver.service.agents import hosts_needed
from driver.service.leadership import refuse_other_keeping
from driver.tracker import CopyRules, Tracker
from driver.tracker.requests import BeginReplay, CleanLocalCopies, KeepWindow
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.values import Block, Handle
from tests.support.state.tracked import STREAM, Tracked, offsets, tracker_options


class Copied(Tracked):
    """``copies`` on hosts h1 and h2."""

    def __init__(self, copies: int = 2, **settings: int) -> None:
        super().__init__(partitions=1, **settings)  # type: ignore[arg-type]
        self.tracker.replicas.rules = CopyRules(copies=copies, timeout_seconds=30.0, room_bytes=1_000)
        self.hosts = ("h2",) if copies == 2 else ()
        self.epoch = self.register()
        self.token = self.claim(self.epoch).view.token
        self.beat_agent("h2")
        self.second()

    def made(self, until: int, **changes: Any) -> Block:
        start = self.state.partitions["t/0"].position
        meta = self.block(self.epoch, [offsets(start, until, self.token)]).meta
        made = Block(meta, Handle("", 0, 1_000, 7), True, self.hosts)
        return msgspec.structs.replace(made, **changes)

    def take(self, until: int) -> Block:
        made = self.made(until)
        (result,) = self.report(self.epoch, made)
        assert result.accepted
        return made

    def beat_agent(self, host: str, acknowledged: int = 0, free_bytes: int = 1 << 30) -> tuple[m.Command, ...]:
        request = m.AgentHeartbeatRequest(
            host=host, url=f"http://{host}:1", instance_id=host, acknowledged=acknowledged, blocks=0, used_bytes=0,
            free_bytes=free_bytes,
        )  # fmt: skip
        return self.say(request).commands  # type: ignore[no-any-return]

    def second(self, current: str = "", refusing: tuple[str, ...] = ()) -> m.ReplicaHost | None:
        request = m.HeartbeatRequest(
            receiver_id="r1", epoch=self.epoch, state="active", detail="", acknowledged=0, buffered_bytes=0, records=0,
            replica_host=current, refusing_hosts=refusing,
        )  # fmt: skip
        return self.say(request).replica_host  # type: ignore[no-any-return]

    def check(self) -> None:
        """INV-7: the index is that of the state, also of one that a snapshot brings back."""
        again: State = msgspec.msgpack.decode(msgspec.msgpack.encode(self.state), type=State)
        assert self.state.index == self.state.build_index() == again.index


# ---- what is accepted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"other_hosts": ()},
        {"other_hosts": ("h1",)},
        {"local": False},
        {"local": False, "other_hosts": ("h2", "h3")},
        {"other_hosts": ("h2", "h2")},
        {"other_hosts": ("../h2",)},
        {"handle": Handle(f"{STREAM}/blocks/r1/0000010000000001/00000001.seg", 0, 1_000, 7)},
    ],
)
def test_a_block_with_fewer_copies_than_are_wanted_is_never_accepted(changes: dict[str, object]) -> None:
    """INV-1: a receiver with other settings can't lower the promise."""
    t = Copied()
    with pytest.raises(UsageError):
        t.report(t.epoch, t.made(5, **changes))
    assert t.state.partitions["t/0"].position == 0
    assert t.take(5).hosts == ("h1", "h2")


def test_block_with_a_replica_on_an_unknown_host_is_refused_and_cut_again() -> None:
    """INV-1: no known host has it. It is refused by rule 4, so that the receiver copies it to another host."""
    t = Copied()
    t.beat_agent("h3")
    for forged in ("h3", "nowhere"):
        (result,) = t.report(t.epoch, t.made(5, other_hosts=(forged,)))
        assert not result.accepted
        assert [stale.reason for stale in result.stale] == ["copy"]
    (result,) = t.report(t.epoch, t.made(5, other_hosts=("h2", "nowhere")))
    assert not result.accepted
    assert t.state.partitions["t/0"].position == 0
    assert not t.state.blocks
    t.take(5)


def test_where_a_receivers_copies_went_before_they_went_elsewhere_is_taken() -> None:
    t = Copied()
    made = t.made(5)
    t.beat_agent("h3")
    assert t.second("h2", refusing=("h2",)) == m.ReplicaHost(host="h3", url="http://h3:1")
    (result,) = t.report(t.epoch, made)
    assert result.accepted


def test_new_driver_without_a_replica_host_has_reports_wait() -> None:
    """It has just begun to lead. A block that was accepted before is answered immediately."""
    t = Copied()
    taken, made = t.take(5), t.made(9)
    t.tracker = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options(copy_rules=t.tracker.replicas.rules))
    (again,) = t.report(t.epoch, taken)
    assert again.accepted
    for said in ("", "h2"):
        with pytest.raises(RefusedError, match="knows no host yet") as refused:
            t.report(t.epoch, made)
        assert refused.value.code == "no-second-host"
        assert t.second(said) is None
    t.beat_agent("h2")
    t.second("h2")
    (result,) = t.report(t.epoch, made)
    assert result.accepted


def test_a_driver_that_took_over_counts_where_copies_went_before_it_by_the_receivers_word() -> None:
    """INV-1: they are stored there, even if the receiver gets another host immediately."""
    t = Copied()
    made = t.made(5)
    t.tracker = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options(copy_rules=t.tracker.replicas.rules))
    for host in ("h2", "h3"):
        t.beat_agent(host)
    assert t.second("h2", refusing=("h2",)) == m.ReplicaHost(host="h3", url="http://h3:1")
    (result,) = t.report(t.epoch, made)
    assert result.accepted


def test_a_stream_without_a_wal_has_no_cursors() -> None:
    """INV-8: nothing of it could be held for one."""
    t = Copied()
    t.tracker = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options(copy_rules=t.tracker.replicas.rules))
    with pytest.raises(RefusedError, match="reads the intake from its WAL, and this stream has none"):
        t.say(m.OpenCursorRequest(cursor="q", user="u", places=()))
    assert not t.state.cursors


def test_stream_with_a_wal_takes_no_block_that_is_on_hosts_alone() -> None:
    t = Copied()
    t.tracker.replicas.rules = None
    with pytest.raises(UsageError, match="is not a segment"):
        t.report(t.epoch, t.made(5))


def test_a_stream_does_not_change_between_a_wal_and_none_while_blocks_are_named() -> None:
    t = Copied()
    refuse_other_keeping(t.state, True)
    t.take(5)
    refuse_other_keeping(t.state, False)
    with pytest.raises(UsageError, match="taken in without a WAL"):
        refuse_other_keeping(t.state, True)
    other = Tracked()
    epoch = other.register()
    other.take_in(epoch, other.claim(epoch).view.token, 5)
    refuse_other_keeping(other.state, True)
    with pytest.raises(UsageError, match="are in the WAL"):
        refuse_other_keeping(other.state, False)


# ---- clean-up --------------------------------------------------------------------------------------------------------


def test_both_copies_go_when_the_history_holds_the_batch_and_the_block_with_the_last_of_them() -> None:
    """INV-8. Each host has its own clean-up: a host without heartbeats delays no other, and finds its command when it returns."""
    t = Copied()
    t.take(5)
    batch = t.batch()
    t.complete(batch)
    t.say(CleanLocalCopies())
    t.check()
    assert not t.state.cleanups, "the batch is not in the history yet"
    t.archive(batch)
    t.check()
    t.say(CleanLocalCopies())
    t.check()
    (first,) = t.beat_agent("h1")
    assert first.blocks == (f"{STREAM}/r1-{t.epoch:x}-1",)
    t.beat_agent("h1", acknowledged=first.version)
    t.check()
    (left,) = t.state.blocks.values()
    assert left.hosts == ("h2",)
    assert not t.beat_agent("h1")
    (second,) = t.beat_agent("h2")
    assert second.blocks == first.blocks
    t.beat_agent("h2", acknowledged=second.version)
    t.check()
    assert not t.state.blocks
    assert not t.state.released
    assert not t.state.uncovered
    assert not t.state.cleaning_blocks


def test_copies_stay_as_long_as_a_window_reaches_back_to_them() -> None:
    """INV-8: also where the window grows after the batch was completed."""
    t = Copied(copies=1)
    t.take(5)
    first = t.batch()
    t.complete(first)
    t.say(KeepWindow(1))
    t.say(CleanLocalCopies())
    assert not t.state.cleanups
    t.take(9)
    second = t.batch()
    t.complete(second)
    t.archive(first)
    t.say(CleanLocalCopies())
    t.check()
    assert [len(cleanup.blocks) for cleanup in t.state.cleanups.values()] == [1]


def test_nothing_can_be_replayed() -> None:
    t = Copied()
    t.take(5)
    t.complete(t.batch())
    found = plan(t.state, (), RewindTo(1, 0))
    assert not found.possible
    assert "no longer holds" in refuse(found)
    with pytest.raises(RefusedError):
        t.say(BeginReplay(RewindTo(1, 0), (), 0, "somebody"))


def test_nothing_is_deleted_for_lack_of_room() -> None:
    """INV-8: what no WAL holds stays, however short of room its host is, and however old it is; on a host that the journal
    names, a copy is none that is left over."""
    t = Copied()
    block = t.take(5)
    for host in block.hosts:
        request = m.AgentHeartbeatRequest(
            host=host, url=f"http://{host}:1", instance_id=host, acknowledged=0, blocks=1, used_bytes=1, free_bytes=0,
            short_bytes=10_000, old_blocks=(block.id,),
        )  # fmt: skip
        assert not t.say(request).commands
    t.complete(t.batch())
    for host in block.hosts:
        request = msgspec.structs.replace(t.tracker.agent_heartbeats[host].heartbeat, short_bytes=0)
        assert not t.say(request).commands, "its batch is completed, and not in the history yet"


def test_a_copy_that_the_journal_does_not_name_goes_when_its_batch_is_past() -> None:
    """It was sent to a host that did not answer, and is stored there."""
    t = Copied()
    block = t.take(5)
    request = m.AgentHeartbeatRequest(
        host="h3", url="http://h3:1", instance_id="h3", acknowledged=0, blocks=1, used_bytes=1, free_bytes=0,
        old_blocks=(block.id,),
    )  # fmt: skip
    assert not t.say(request).commands
    t.complete(t.batch())
    (command,) = t.say(request).commands
    assert command.blocks == (f"{STREAM}/{block.id}",)
    t.beat_agent("h3", acknowledged=command.version)
    t.check()
    assert t.state.blocks[block.id].hosts == ("h1", "h2")


def test_a_driver_waits_for_the_hosts_that_keep_what_is_unfinished() -> None:
    t = Copied()
    t.take(5)
    batch = t.batch()
    assert hosts_needed(t.state) == {"h1", "h2"}
    t.complete(batch)
    t.archive(batch)
    assert hosts_needed(t.state) == set()


# ---- the replica host ------------------------------------------------------------------------------------------------

TWO = {"h1": HostSpace("http://h1", 5_000), "h2": HostSpace("http://h2", 5_000), "h3": HostSpace("http://h3", 9_000)}


def chosen(current: str = "", refusing: tuple[str, ...] = (), loads: dict[str, int] | None = None) -> str:
    found = replica_host("h1", current, refusing, TWO, loads or {}, 1_000)
    return found.host if found is not None else ""


def test_replica_host_is_another_one_with_fewest_receivers_and_most_room_and_stays() -> None:
    assert chosen() == "h3"
    assert chosen(loads={"h3": 1}) == "h2"
    assert chosen(current="h2") == "h2"
    assert chosen(current="h2", refusing=("h2",)) == "h3"
    assert chosen(current="h1") == "h3", "never its own host"
    assert chosen(current="gone") == "h3"


def test_replica_host_is_named_even_if_all_hosts_refuse_copies() -> None:
    """It may take copies again; a receiver without a host would not try."""
    assert chosen(current="h2", refusing=("h2", "h3")) == "h2"
    assert chosen(refusing=("h2", "h3")) == "h3"


def test_a_host_without_room_takes_no_copies() -> None:
    full = {**TWO, "h3": HostSpace("http://h3", 999)}
    assert replica_host("h1", "h3", (), full, {}, 1_000) == m.ReplicaHost(host="h2", url="http://h2")
    assert replica_host("h1", "", (), {"h1": TWO["h1"]}, {}, 1_000) is None


def test_driver_names_a_replica_host_whose_agent_sent_a_recent_heartbeat() -> None:
    t = Copied()
    t.tracker.agents.latest.clear()
    assert t.second() is None
    t.beat_agent("h1")
    assert t.second() is None, "its own host is none"
    t.beat_agent("h2")
    assert t.second() == m.ReplicaHost(host="h2", url="http://h2:1")
    t.now_ms += 29_000
    t.beat_agent("h3")
    assert t.second("h2") == m.ReplicaHost(host="h2", url="http://h2:1")
    t.now_ms += 2_000
    assert t.second("h2") == m.ReplicaHost(host="h3", url="http://h3:1")
    t.tracker.replicas.rules = CopyRules(copies=1, timeout_seconds=30.0, room_bytes=1_000)
    assert t.second("h2") is None
