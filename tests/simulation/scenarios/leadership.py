"""Scenarios about the journal and the drivers that lead, one after the other or at the same time."""

from __future__ import annotations

from tests.simulation.script import LOOP, RECEIVER, Script


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
