"""The scripts of the fixed traces.

``python -m tests.simulation --record`` runs them on the right code and records the traces anew: after a change of the
simulation's steps, never to make a test pass.
"""

from __future__ import annotations

from collections.abc import Callable

from driver.journal.state_parts import OpenFault
from tests.simulation.options import Options
from tests.simulation.scheduler import OPTIONAL
from tests.simulation.traces import Trace
from tests.simulation.world import World

#: maximum number of steps in which a script must find a step that it needs
PATIENCE_STEPS = 400


class Script:
    """A world, and the steps that were taken in it."""

    def __init__(self, **options: object) -> None:
        fixed = {"partitions": 1, "receivers": 1, "snapshot_events": 1_000, "drivers_at_once": 3}
        self.options = Options(**{**fixed, **options})  # type: ignore[arg-type]
        self.world = World(self.options)
        self.steps: list[str] = []

    def do(self, *labels: str) -> None:
        for label in labels:
            self.world.take(label)
            self.steps.append(label)

    def perhaps(self, *labels: str) -> None:
        """Record steps that only the mistaken code may offer."""
        for label in labels:
            if self.world.can(label):
                self.world.take(label)
            self.steps.append(f"{OPTIONAL}{label}")

    def run(
        self, *whose: str, until: Callable[[], object], without: tuple[str, ...] = (), optional: bool = False
    ) -> None:
        """Take all steps of the named processes, without faults, until ``until``.

        ``optional``: the mistaken code may not offer all of them.
        """
        for _ in range(PATIENCE_STEPS):
            if until():
                return
            possible = [
                step.label
                for step in self.world.steps()
                if not step.fault
                and step.numbers is None
                and any(self._is(step.label, name) for name in whose)
                and not step.label.startswith(without)
            ]
            # rounds that may find nothing to do yet wait until there is nothing else
            busy = [label for label in possible if not label.endswith((" tick", " adopt:begin"))]
            ticks = [label for label in possible if label not in busy]
            labels = busy[:1] if busy else ["time 3", *ticks]
            if optional:
                self.perhaps(*labels)
            else:
                self.do(*labels)
        raise AssertionError(f"never came: {self.steps[-20:]}")

    def _is(self, label: str, name: str) -> bool:
        """Return the process's own steps and those of its messages."""
        return label.startswith(name) or f" {name}/" in label

    def open_driver(self, name: str) -> None:
        self.do("start driver", f"{name} claim", f"{name} read", f"{name} snapshot", f"{name} open")

    def begin(self, *receivers: str) -> None:
        """Start one driver that leads and knows the partitions, and receivers that own theirs."""
        self.open_driver("d1")
        self.run(*LOOP, "d1 housekeeping", until=self._created)
        self.run(*LOOP, until=lambda: not any(map(self.world.can, LOOP)))
        for receiver in receivers:
            self.do(f"start {receiver}")
        names = [f"{receiver}.1" for receiver in receivers]
        if names:
            self.run(*names, *LOOP, until=lambda: self.reading() == self.options.partitions)

    def _created(self) -> bool:
        state = self.world.invariants.durable
        if state is None or not state.created or not (state.copies or self.options.copies):
            return False
        return self.world.drivers[0].has_discovered

    def reading(self) -> int:
        return sum(len(process.source.reading) for process in self.world.receivers.values())

    def position(self, key: str = "t/0") -> int:
        state = self.world.invariants.durable
        return state.partitions[key].position if state is not None else -1

    def fault(self, key: str = "t/0") -> OpenFault | None:
        state = self.world.invariants.durable
        return state.partitions[key].fault if state is not None else None

    def incarnations(self, key: str = "t/0") -> int:
        state = self.world.invariants.durable
        return len(state.partitions[key].incarnations) if state is not None else 0

    def completed(self) -> int:
        state = self.world.invariants.durable
        return state.batches_completed if state is not None else 0

    def waiting(self) -> bool:
        """Return whether a block is in no batch."""
        state = self.world.invariants.durable
        return state is None or bool(state.waiting)

    def covered(self) -> bool:
        """Return whether both snapshot copies have everything that is released."""
        state = self.world.invariants.durable
        return state is not None and len(state.copies) == 2 and bool(state.released) and not state.uncovered

    def sent(self, label: str) -> bool:
        """Return whether this message is on its way."""
        return label in self.world.network.exchanges


#: the decision loop of the first driver
LOOP = ("d1 decide", "d1 append", "d1 sync", "d1 check", "d1 release", "d1 snapshot-again", "d1 drop")
RECEIVER = ("r1.1",)
#: a search of the WAL for records that Kafka lost
ADOPT = "d1 adopt"
CLEAN = tuple(f"d1 clean:{name}" for name in ("begin", "answered", "copy", "copied", "prune", "deleted", "list"))


def rewind_by_seek_alone() -> Script:
    """A topic is created again.

    The receiver has fetched ahead in the new log when it learns of it, and has to go back to the beginning. A record that
    was fetched ahead must not be taken for the first record after a gap.
    """
    script = Script()
    script.begin("r1")
    script.do("produce t/0 4")
    machine = script.world.receivers["r1"].machine
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4 and not machine.buffered_bytes)
    script.do("recreate", "produce t/0 6", "produce t/0 6")
    source = script.world.receivers["r1"].source
    script.run("r1.1 fetch", "r1.1 poll", until=lambda: machine.buffered_bytes > 0)
    script.run("r1.1 fetch", until=lambda: not script.world.can("r1.1 fetch t/0"))
    ahead = ("r1.1 poll",)
    script.run(
        *RECEIVER,
        *LOOP,
        ADOPT,
        until=lambda: {r.start.generation for r in source.reading.values()} == {2},
        without=ahead,
    )
    script.perhaps("r1.1 source")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 12, optional=True)
    return script


def answer_before_durable() -> Script:
    """The receiver learns that its block was accepted, and commits. Then the journal's host loses its unsynced bytes."""
    script = Script()
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("deliver r1.1/report#1 d1", "d1 decide")
    script.perhaps("d1 release", "answer r1.1/report#1 1", "r1.1 source", "r1.1 commit")
    script.do("d1 append", "d1 sync", "d1 check", "d1 release", "answer r1.1/report#1 1")
    return script


def journal_order_unlike_decisions() -> Script:
    """Two receivers register at the same time: both registrations are decided in one group."""
    script = Script(receivers=2, partitions=2)
    script.begin()
    script.do("start r1", "start r2", "deliver r1.1/register#1 d1", "deliver r2.1/register#1 d1")
    script.do("d1 decide", "d1 append", "d1 sync", "d1 check", "d1 release")
    return script


def claim_without_compare_and_set() -> Script:
    """A copy of a claim arrives after the claim was granted, used, and ended by another receiver's claim."""
    script = Script(receivers=2, partitions=1, faults=("network", "receiver"))
    script.open_driver("d1")
    script.run(*LOOP, "d1 housekeeping", until=script._created)
    script.do("start r1")
    script.run(*RECEIVER, *LOOP, until=lambda: script.sent("r1.1/claim#1"), without=("deliver r1.1/claim#1",))
    script.do("repeat r1.1/claim#1", "deliver r1.1/claim#1 d1")
    script.run(*RECEIVER, *LOOP, until=lambda: script.reading() == 1, without=("deliver r1.1/claim#1",))
    script.do("r1.1 kill", "expire r1.1/1", "start r2", "produce t/0 4")
    script.run("r2.1", *LOOP, until=lambda: script.position() == 4)
    script.run(*LOOP, until=lambda: not any(map(script.world.can, LOOP)))
    script.do("deliver r1.1/claim#1 d1", "d1 decide")
    return script


def put_without_an_answer_taken_for_done() -> Script:
    """The WAL's store does not answer a put, and performs it long after the block was accepted, or never."""
    script = Script(wal_objects=True, faults=("receiver",))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.world.can("r1.1 sync"), without=("r1.1 sync",))
    script.do("r1.1 sync-lands-late")
    script.perhaps("r1.1 sync")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4, optional=True)
    script.do("wal lands-late 0")
    return script


def append_after_take_over() -> Script:
    """A driver is paused between deciding and writing; another one takes over; the first wakes and writes all the same."""
    script = Script(faults=("driver",))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("deliver r1.1/report#1 d1", "d1 decide", "d1 pause")
    script.open_driver("d2")
    script.do("d1 wake", "d1 append", "d1 sync")
    script.perhaps("d1 check", "d1 release")
    return script


def deletion_after_take_over() -> Script:
    """A driver is paused before it journals that a batch is completed.

    For the driver that takes over, the batch has not run. The first driver wakes and cleans up the batch that it
    considers completed.
    """
    script = Script(segment_bytes=1, faults=("driver",))
    script.begin("r1")
    for until in (4, 8):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
    script.run(*LOOP, "d1 timer", "d1 job", until=lambda: script.world.can("d1 job:complete"))
    script.do("d1 job:complete", "d1 pause")
    script.open_driver("d2")
    script.do("d1 wake", "d1 decide", "d1 append", "d1 sync")
    clean = [*LOOP, "d1 job:answered", *CLEAN, "d1 clean:archive"]
    for _ in range(20):
        script.perhaps(*clean, "d1 clean:scan", "d1 clean:judge", "d1 clean:delete")
    return script


def orphan_deleted_before_its_report() -> Script:
    """Two blocks are durable, in segments of their own, and their report is late.

    Clean-up finds the first block, which the journal does not name.
    """
    script = Script(segment_bytes=1)
    script.begin("r1")
    script.do("produce t/0 4")
    late = ("deliver r1.1/report#1",)
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=late)
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: len(script.world.wal.list("sim/blocks")) == 2, without=late)
    script.run(*RECEIVER, until=lambda: not script.world.can("r1.1 sync"), without=late)
    script.do("d1 clean:begin")
    script.run(*LOOP, *CLEAN, until=lambda: script.world.can("d1 clean:scan"))
    script.do("d1 clean:scan", "d1 clean:judge", "d1 decide")
    script.perhaps("d1 append", "d1 sync", "d1 check")
    script.do("d1 release")
    script.run(*LOOP, "d1 clean:answered", until=lambda: not script.world.can("d1 decide"))
    for _ in range(4):
        script.perhaps(
            *LOOP, "d1 clean:scan", "d1 clean:judge", "d1 clean:answered", "d1 clean:delete", "d1 clean:deleted"
        )
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 8)
    return script


def unsynced_tail_trusted() -> Script:
    """A driver is killed between writing and syncing. The next one finds the bytes in the page cache."""
    script = Script(faults=("driver", "host"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("deliver r1.1/report#1 d1", "d1 decide", "d1 append", "d1 kill")
    script.open_driver("d2")
    script.do("crash driver-host 1")
    return script


def range_written_twice_under_one_token() -> Script:
    """A report gets no answer in time, but arrives."""
    script = Script(faults=("network",))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("give-up r1.1/report#1", "time 30", "r1.1 tick")
    script.perhaps("r1.1 ask-broker", "r1.1 encode", "r1.1 append", "r1.1 sync")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    return script


def two_openers_act() -> Script:
    """Two drivers open at the same time, while a third one, not yet aware, writes.

    The newer one reads before that write, the older one after it. So they have different states, and only one may act.
    """
    script = Script(faults=("driver", "network"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("repeat r1.1/report#1", "deliver r1.1/report#1 d1", "d1 decide")
    script.do("start driver", "d2 claim", "start driver", "d3 claim", "d3 read")
    script.do("d1 append", "d2 read", "d2 snapshot", "d2 open")
    script.perhaps("deliver r1.1/report#1 d2", "d2 decide", "d2 release", "answer r1.1/report#1 1")
    script.do("d3 snapshot", "d3 open")
    return script


def refusal_after_take_over() -> Script:
    """A driver that was taken over does not know it yet.

    A receiver that registered with the new one asks the old one, which does not know the epoch. Its refusal must not end
    the receiver.
    """
    script = Script(faults=("driver", "receiver"))
    script.begin("r1")
    script.open_driver("d2")
    script.do("r1.1 kill", "expire r1.1/1", "start r1", "deliver r1.2/register#1 d2")
    script.run("r1.2", "d2 ", until=lambda: script.sent("r1.2/look#1"), without=("deliver r1.2/look#1",))
    script.do("deliver r1.2/look#1 d1", "d1 decide", "d1 check")
    script.perhaps("d1 release", "answer r1.2/look#1 1")
    return script


def history_forgets_what_came_while_it_waited() -> Script:
    """The disk is full when the first batch is to move to the history.

    When there is space again, two batches are to move.
    """
    script = Script(faults=("disk",))
    script.begin("r1")
    for number in (1, 2):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda number=number: script.position() == 4 * number)  # type: ignore[misc]
        script.run(*LOOP, "d1 timer", "d1 job", until=lambda number=number: script.completed() == number)  # type: ignore[misc]
        script.run(*LOOP, *CLEAN, until=lambda: script.world.can("d1 clean:archive"))
        if number == 1:
            script.do("journal full 0", "d1 clean:archive", "journal has-space")
    script.do("d1 clean:archive")
    script.run(*LOOP, until=lambda: not any(map(script.world.can, LOOP)))
    return script


def reserve_that_turns_completions_away() -> Script:
    """Blocks wait when the journal's disk fills up, and it is not enlarged.

    They are completed and archived all the same. Then a snapshot deletes what was written about them, and there is room
    for the requests that were refused.
    """
    script = Script(
        snapshot_events=4, max_queued_batches=4, faults=("disk",), journal_reserve_bytes=16_000, stays_full=True
    )
    script.begin("r1")
    for until in range(4, 52, 4):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
    script.do("journal full 15999", "produce t/0 4")
    return script


def gap_while_an_old_writer_can_still_sync() -> Script:
    """A receiver is paused with a block that is not in the WAL yet.

    Another one takes its partition over, and retention deletes the records of the block. When the first one wakes, it
    makes the block durable.
    """
    script = Script(receivers=2, faults=("receiver", "kafka"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.world.can("r1.1 append"), without=("r1.1 append",))
    script.do("r1.1 pause", "expire r1.1/1", "outlive t/0 100", "start r2")
    script.run("r2.1", *LOOP, until=lambda: script.fault() is not None)
    script.run("r2.1", *LOOP, until=lambda: not script.sent("r2.1/heartbeat#2"), without=("r2.1 tick",))
    for _ in range(6):
        script.perhaps("d1 adopt:begin", "d1 adopt:answered", "d1 adopt:search", *LOOP)
    script.do("r1.1 wake", "r1.1 append", "r1.1 sync")
    return script


def incarnation_ended_while_its_writer_can_still_sync() -> Script:
    """An operator resets a partition to its first offset while its receiver has a block that is not in the WAL yet.

    The incarnation ends after that block was accepted, and not before.
    """
    script = Script(receivers=1, partitions=1, faults=("kafka",), resets=True)
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.world.can("r1.1 append"), without=("r1.1 append",))
    for step in ("d1 hold-reset t/0", "d1 reset t/0"):
        script.do(step)
        script.perhaps(*LOOP)
    script.do("r1.1 append", "r1.1 sync")
    (driver,) = script.world.drivers
    partition = driver.tracker.state.partitions["t/0"]
    script.run(
        *RECEIVER,
        *LOOP,
        until=lambda: script.position() == 4 and not driver.tracker.operators.why_not_reset([partition.tp]),
    )
    script.do("d1 reset t/0")
    script.run(*LOOP, until=lambda: script.incarnations() == 2)
    script.do("d1 let-go t/0")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    return script


def whole_block_adopted() -> Script:
    """A receiver dies between its sync and its report of a block of two partitions.

    One of them is read again from Kafka. Retention has deleted the records of the other one.
    """
    script = Script(partitions=2, faults=("receiver", "kafka"))
    script.begin("r1")
    script.do("produce t/0 4", "produce t/1 4")
    late = ("deliver r1.1/report#1",)
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=late)
    script.do("r1.1 kill", "expire r1.1/1", "outlive t/0 100", "start r1")
    script.run("r1.2", *LOOP, until=lambda: script.position("t/1") == 4)
    script.run("r1.2", *LOOP, ADOPT, until=lambda: script.position("t/0") == 4)
    return script


def adopted_from_a_topic_created_again() -> Script:
    """A topic is created again, and its records are polled and stored before any process reads its id: in a block that
    names the old incarnation. Its receiver dies. The next one learns the new id, and the driver searches the WAL for the
    old incarnation.
    """
    script = Script(faults=("receiver", "kafka"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    script.do("recreate", "produce t/0 6")
    unasked = ("r1.1 ask-broker",)
    script.run(*RECEIVER, until=lambda: script.world.can("r1.1 sync"), without=("r1.1 sync", *unasked))
    script.do("r1.1 sync", "r1.1 kill", "expire r1.1/1", "start r1")
    script.run("r1.2", *LOOP, ADOPT, until=lambda: script.incarnations() == 2)
    return script


def search_before_a_late_put() -> Script:
    """A receiver is killed while the store has its object but has not stored it.

    Retention deletes the records, and the WAL is searched. Then the object would land.
    """
    script = Script(wal_objects=True, faults=("receiver", "kafka"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.world.can("r1.1 sync"), without=("r1.1 sync",))
    script.do("r1.1 sync-crash 2", "expire r1.1/1", "outlive t/0 100", "start r1")
    script.run("r1.2", *LOOP, ADOPT, until=lambda: script.position() == 4)
    script.do("wal lands-late 0")
    return script


def adoption_that_the_reserve_ends() -> Script:
    """A receiver dies between its sync and its report, and retention deletes the records of the block.

    The journal's store has only its reserve left when the block is to be adopted.
    """
    script = Script(faults=("receiver", "kafka", "disk"), journal_reserve_bytes=4_000)
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("r1.1 kill", "expire r1.1/1", "outlive t/0 100", "start r1")
    script.run("r1.2", *LOOP, until=lambda: script.fault() is not None)
    script.do("journal full 3999")
    script.run("r1.2", *LOOP, ADOPT, until=lambda: bool(script.world.drivers[0].tracker.blocked), optional=True)
    return script


def reported_before_the_second_copy() -> Script:
    """Without a WAL, and with two copies of each block: the receiver's host has one, the replica host does not have one
    yet. The receiver's host is lost when the block could have been reported.
    """
    script = Script(copies=2, faults=("receiver", "host"))
    script.begin("r1")
    process = script.world.receivers["r1"]
    script.do("host-spare beat", "deliver host-spare/agent#1 d1")
    script.run(*RECEIVER, *LOOP, until=lambda: process.store.replica_host)
    script.do("produce t/0 4")
    script.run(*RECEIVER, *LOOP, until=lambda: script.world.can("r1.1 copy-own"), without=("r1.1 copy-",))
    script.do("r1.1 append")
    script.perhaps("r1.1 ask-broker")
    script.do("r1.1 copy-own")
    script.perhaps("r1.1 ask-broker", "r1.1 tick", "deliver r1.1/report#1 d1", "d1 decide", "d1 append", "d1 sync")
    script.do("host-r1 lose")
    return script


def read_from_a_topic_created_again() -> Script:
    """The block of a batch cannot be read from the WAL.

    Meanwhile its topic was created again, and has as many records at the same offsets.
    """
    script = Script(faults=("driver", "kafka"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    script.run(*LOOP, "d1 timer", "d1 job", until=lambda: script.world.can("d1 job:read"), without=("d1 job:read",))
    script.do("recreate", "produce t/0 4", "d1 job:read-without-wal")
    script.perhaps("d1 job:fetch")
    return script


def clean_up_under_a_replay() -> Script:
    """Clean-up has scanned a segment that nothing needs. Before the decision, a replay begins that needs it again."""
    script = Script(segment_bytes=1, faults=("replay",))
    script.begin("r1")
    for until in (4, 8):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
    script.run(*LOOP, "d1 timer", "d1 job", until=lambda: script.completed() == 1)
    clean = (*LOOP, *CLEAN, "d1 clean:archive")
    script.run(*clean, "d1 clean:scan", "d1 clean:judge", until=script.covered)
    script.run(*clean, until=lambda: script.world.can("d1 clean:scan"))
    script.do("d1 clean:scan", "d1 replay 1")
    script.run(*LOOP, until=lambda: not any(map(script.world.can, LOOP)))
    script.do("d1 clean:judge", "d1 decide")
    for _ in range(8):
        script.perhaps(*LOOP, "d1 clean:answered", "d1 clean:scan", "d1 clean:judge", "d1 clean:delete")
    script.run(*LOOP, "d1 job", until=lambda: not _replaying(script), optional=True)
    return script


def clean_up_under_a_cursor() -> Script:
    """Two blocks are in the history, which a query still has to read, when clean-up runs."""
    script = Script(segment_bytes=1, queries=True, faults=())
    script.begin("r1")
    script.run(*LOOP, "d1 query", until=lambda: script.world.can("d1 query:trigger"))
    for until in (4, 8):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
    script.run(*LOOP, "d1 timer", "d1 job", until=lambda: script.completed() > 0)
    for _ in range(30):
        script.perhaps(*LOOP, *CLEAN, "d1 clean:archive", "d1 clean:scan", "d1 clean:judge", "d1 clean:delete")
    script.run(*LOOP, "d1 query", until=lambda: script.world.query.rows == 8, optional=True)
    return script


def completed_with_the_highest() -> Script:
    """Two batches run at the same time; the later one ends first."""
    script = Script(concurrent_jobs=2, faults=())
    script.begin("r1")
    for until in (4, 8):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
        script.run(*LOOP, "d1 timer", until=lambda: not script.waiting())
    script.run(*LOOP, "d1 job:", until=lambda: script.world.can("d1 job:read"))
    script.run(*LOOP, "d1 job2:", until=lambda: script.world.can("d1 job2:complete"))
    script.do("d1 job2:complete")
    script.run(*LOOP, until=lambda: not any(map(script.world.can, LOOP)))
    return script


def clean_up_under_a_window() -> Script:
    """A batch is completed. The window of the next one reaches back to it when clean-up runs."""
    script = Script(segment_bytes=1, window_batches=1, faults=())
    script.begin("r1")
    for number in (1, 2):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda number=number: script.position() == 4 * number)  # type: ignore[misc]
        script.run(*LOOP, "d1 timer", until=lambda: not script.waiting())
        if number == 1:
            script.run(*LOOP, "d1 job", until=lambda: script.completed() == 1)
    for _ in range(12):
        script.perhaps(*LOOP, *CLEAN, "d1 clean:archive")
    script.run(*LOOP, "d1 job", until=lambda: script.completed() == 2, optional=True)
    return script


def _replaying(script: Script) -> bool:
    state = script.world.invariants.durable
    return state is not None and bool(state.replaying)


def clean_up_on_what_no_copy_covers() -> Script:
    """A batch is in the history, and one copy beside the WAL says so; the copy before it does not.

    If the newer copy cannot be read when the journal is lost, the rebuild begins from the older one, and needs the
    batch's blocks.
    """
    script = Script(segment_bytes=1, faults=())
    script.begin("r1")
    for until in (4, 8):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
    script.run(*LOOP, "d1 timer", "d1 job", until=lambda: script.completed() > 0)
    script.run(*LOOP, *CLEAN, "d1 clean:archive", until=lambda: script.world.can("d1 clean:scan"))
    script.do("d1 clean:scan", "d1 clean:judge", "d1 decide")
    script.perhaps("d1 append", "d1 sync")
    return script


def rebuild_that_trusts_the_highest_token_alone() -> Script:
    """Two receivers take in records one after the other, after the only copy.

    Then the journal is lost. The walk from the position in the copy finds what the first one took in.
    """
    script = Script(receivers=2, faults=("receiver", "journal"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    script.do("r1.1 kill", "expire r1.1/1", "start r2", "produce t/0 4")
    script.run("r2.1", *LOOP, until=lambda: script.position() == 8)
    script.do("lose journal 0", "rebuild")
    while script.world.journal_loss.rebuilding is not None:
        script.do("rebuild step")
    return script


SCENARIOS: dict[str, Callable[[], Script]] = {
    "reported-before-the-second-copy": reported_before_the_second_copy,
    "read-from-a-topic-created-again": read_from_a_topic_created_again,
    "clean-up-under-a-replay": clean_up_under_a_replay,
    "completed-with-the-highest": completed_with_the_highest,
    "clean-up-under-a-window": clean_up_under_a_window,
    "clean-up-under-a-cursor": clean_up_under_a_cursor,
    "rewind-by-seek-alone": rewind_by_seek_alone,
    "answer-before-durable": answer_before_durable,
    "journal-order-unlike-decisions": journal_order_unlike_decisions,
    "claim-without-compare-and-set": claim_without_compare_and_set,
    "put-without-an-answer-taken-for-done": put_without_an_answer_taken_for_done,
    "append-after-take-over": append_after_take_over,
    "deletion-after-take-over": deletion_after_take_over,
    "orphan-deleted-before-its-report": orphan_deleted_before_its_report,
    "unsynced-tail-trusted": unsynced_tail_trusted,
    "range-written-twice-under-one-token": range_written_twice_under_one_token,
    "two-openers-act": two_openers_act,
    "refusal-after-take-over": refusal_after_take_over,
    "clean-up-on-what-no-copy-covers": clean_up_on_what_no_copy_covers,
    "rebuild-that-trusts-the-highest-token-alone": rebuild_that_trusts_the_highest_token_alone,
    "history-forgets-what-came-while-it-waited": history_forgets_what_came_while_it_waited,
    "reserve-that-turns-completions-away": reserve_that_turns_completions_away,
    "gap-while-an-old-writer-can-still-sync": gap_while_an_old_writer_can_still_sync,
    "life-ended-while-its-writer-can-still-sync": incarnation_ended_while_its_writer_can_still_sync,
    "whole-block-adopted": whole_block_adopted,
    "search-before-a-late-put": search_before_a_late_put,
    "adoption-that-the-reserve-ends": adoption_that_the_reserve_ends,
    "adopted-from-a-topic-created-again": adopted_from_a_topic_created_again,
}


def record(name: str, invariant: str) -> Trace:
    """Run the scenario on the right code.

    ``invariant``: the one that the planted mistake violates. Raises InvariantViolation if the right code violates one.
    """
    scenario = SCENARIOS[name]
    script = scenario()
    return Trace(
        about=" ".join((scenario.__doc__ or name).split()),
        invariant=invariant,
        options=script.options,
        steps=tuple(script.steps),
    )
