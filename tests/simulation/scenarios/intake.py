"""Scenarios about receivers: their claims, blocks and reports, and topics that are created again."""

from __future__ import annotations

from tests.simulation.script import ADOPT, LOOP, RECEIVER, Script


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
