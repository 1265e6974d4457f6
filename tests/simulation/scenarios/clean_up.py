"""Scenarios about completed batches, the history and clean-up."""

from __future__ import annotations

from tests.simulation.faults import JUMPS_MS
from tests.simulation.options import LONG_RETENTION_MS
from tests.simulation.script import CLEAN, LOOP, RECEIVER, Script


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


def clean_up_by_the_wall_clock() -> Script:
    """A batch is completed. Then the wall clock of the driver's host jumps ahead by a day, and clean-up runs."""
    script = Script(segment_bytes=1, retention_ms=LONG_RETENTION_MS, faults=("clock",))
    script.begin("r1")
    for until in (4, 8):
        script.do("produce t/0 4")
        script.run(*RECEIVER, *LOOP, until=lambda until=until: script.position() == until)  # type: ignore[misc]
    script.run(*LOOP, "d1 timer", "d1 job", until=lambda: script.completed() > 0)
    script.do(f"d1 clock {JUMPS_MS.index(86_400_000)}", "time 29")
    for _ in range(30):
        script.perhaps(*LOOP, *CLEAN, "d1 clean:archive", "d1 clean:scan", "d1 clean:judge")
    return script


def _replaying(script: Script) -> bool:
    state = script.world.invariants.durable
    return state is not None and bool(state.replaying)
