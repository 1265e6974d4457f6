"""Deletion: which WAL segments and local copies the driver intends to delete, and what it has deleted (INV-8)."""

from __future__ import annotations

import itertools

from driver.decisions.clean_up import COPIES_AT_ONCE, CleanSegment, judge
from driver.journal import events as ev
from driver.journal.state_parts import SnapshotCopy
from driver.tracker.decision import Action, DeleteSegment, Recorder
from driver.tracker.requests import CleanedUp, Copied
from wal.decisions.retention import Judgement, RetentionLimits


class Deletion:
    """Journals each deletion as an intent before it is done. ``limits``: the retention limits for requests that name none."""

    def __init__(self, *, recorder: Recorder, limits: RetentionLimits) -> None:
        self._recorder = recorder
        self._limits = limits

    def pending_actions(self) -> list[Action]:
        """Return the actions that a driver must repeat when it has opened the journal: every intended deletion that is not
        done."""
        return [
            DeleteSegment(cleanup.number, path)
            for cleanup in self._recorder.state.cleanups.values()
            for path in cleanup.segments
        ]

    def clean_local_copies(self) -> None:
        """Journal the intent to delete superfluous local copies, with at most one open clean-up on each host."""
        state = self._recorder.state
        busy = {cleanup.host for cleanup in state.cleanups.values()}
        for host in sorted(state.index.superfluous.keys() - busy):
            blocks = tuple(itertools.islice(state.index.superfluous[host], COPIES_AT_ONCE))
            self._recorder.apply(ev.CleanupIntended(number=state.cleanup_count + 1, host=host, blocks=blocks))

    def clean_segment(self, request: CleanSegment) -> Judgement:
        """If nothing in the WAL segment is needed, journal the intent to delete it and request the deletion."""
        state, path = self._recorder.state, request.facts.path
        judgement = judge(state, request, self._limits)
        if judgement.deletable:
            number = state.cleanup_count + 1
            self._recorder.apply(ev.CleanupIntended(number=number, segments=(path,)))
            self._recorder.act(DeleteSegment(number, path))
        return judgement

    def cleaned_up(self, request: CleanedUp) -> None:
        """Journal that an intended deletion is done."""
        if request.number in self._recorder.state.cleanups:
            self._recorder.apply(ev.CleanupDone(request.number))

    def copied(self, request: Copied) -> tuple[SnapshotCopy, ...]:
        """Journal that a snapshot copy is durable, on which later deletions may rely. Return the copies that are kept."""
        self._recorder.apply(ev.SnapshotCopied(next=request.next, path=request.path))
        return self._recorder.state.copies
