"""Scenarios about gaps and adoption: blocks that are durable or may become durable, without a report of their receiver."""

from __future__ import annotations

from tests.simulation.script import ADOPT, LOOP, RECEIVER, Script


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
