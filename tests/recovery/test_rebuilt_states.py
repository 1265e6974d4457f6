"""Keyed states after a rebuild of a lost journal: each continues with the last batch that the rebuild knows as completed."""

from __future__ import annotations

import pytest

from driver.background.snapshot_copies import CopyNeed, copy_due
from driver.decisions.replay import RewindTo
from driver.journal import history
from driver.journal.versions import StateCommit
from driver.tracker.requests import BeginReplay, Complete, CompleteOutput
from forebay.model.identifiers import numbered
from tests.support.state.lost_journal import Lost, numbers
from tests.support.state.tracked import STREAM, offsets
from wal.decisions.retention import RetentionLimits


class LostWithState(Lost):
    """A stream whose batches change the state ``s``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epoch = self.t.register()
        self.token = self.t.claim(self.epoch).view.token

    def allocate(self) -> int:
        position = self.t.state.partitions["t/0"].position
        self.take_in(self.epoch, offsets(position, position + 10, self.token))
        return self.t.batch()

    def commit(self, name: str) -> StateCommit:
        return StateCommit("s", f"{STREAM}/state/s/{name}/manifest.json", name[:1].encode() * 32, 2)

    def complete(self, batch_id: int, name: str, replay: int = 0) -> None:
        self.t.say(Complete(batch_id, 1, 1, replay, states=(self.commit(name),)))

    def rebuilt(self) -> list[str]:
        self.rebuild()
        known = self.lead().keyed.get("s")
        return [version.manifest.split("/")[3] for version in known.versions] if known is not None else []

    def archive(self) -> None:
        writer = history.HistoryWriter(
            self.journal, STREAM, numbered(1, 1), segment_bytes=1 << 20, now=lambda: 1.0, new_uid=lambda: next(numbers)
        )
        writer.append(history.finished(self.t.state))
        writer.close()


@pytest.mark.parametrize("survives", [False, True], ids=["history lost", "history survives"])
def test_batches_completed_after_the_copy_count_only_if_they_do_not_run_again(survives: bool) -> None:
    """INV-3: a batch that runs again under a new id sees the state before it."""
    lost = LostWithState()
    lost.complete(lost.allocate(), "a")
    lost.copy()
    lost.complete(lost.allocate(), "b")
    if survives:
        lost.archive()
    assert lost.rebuilt() == (["a", "b"] if survives else ["a"])


def test_an_output_that_was_done_in_a_batch_that_runs_again_does_not_count() -> None:
    lost = LostWithState()
    lost.complete(lost.allocate(), "a")
    lost.t.say(CompleteOutput(lost.allocate(), "first", 1, states=(lost.commit("b"),)))
    lost.copy()
    assert lost.rebuilt() == ["a"]


def test_a_batch_whose_first_output_the_copy_has_counts_once_if_the_history_has_it() -> None:
    lost = LostWithState()
    batch = lost.allocate()
    lost.t.say(CompleteOutput(batch, "first", 1, states=(lost.commit("a"),)))
    lost.copy()
    lost.t.say(Complete(batch, 1, 1))
    lost.archive()
    assert lost.rebuilt() == ["a"]


def test_a_replay_that_the_rebuild_cuts_off_leaves_the_versions_before_it() -> None:
    lost = LostWithState()
    batches = [lost.allocate() for _ in range(3)]
    for batch, name in zip(batches, "abc", strict=True):
        lost.complete(batch, name)
    lost.t.say(BeginReplay(RewindTo(batches[1]), (), 0, "ann"))
    lost.complete(batches[1], "d", replay=1)
    lost.copy()
    assert lost.rebuilt() == ["a", "b", "c"]


def test_the_end_of_a_replay_makes_a_copy_due_from_which_the_rebuild_has_its_versions() -> None:
    """An older copy knows only the versions that the replay has replaced."""
    lost = LostWithState()
    batches = [lost.allocate() for _ in range(2)]
    for batch, name in zip(batches, "ab", strict=True):
        lost.complete(batch, name)
    lost.copy()
    lost.t.say(BeginReplay(RewindTo(batches[0]), (), 0, "ann"))
    for batch, name in zip(batches, "cd", strict=True):
        assert copy_due(lost.t.state, RetentionLimits(retention_ms=10**9), 0) is CopyNeed.LATER
        lost.complete(batch, name, replay=1)
    assert copy_due(lost.t.state, RetentionLimits(retention_ms=10**9), 0) is CopyNeed.NOW
    lost.copy()
    assert lost.rebuilt() == ["c", "d"]


def test_versions_that_an_old_copy_may_name_are_kept_until_the_new_journal_has_two_copies() -> None:
    """INV-8."""
    lost = LostWithState()
    for name in "abcde":
        lost.complete(lost.allocate(), name)
    lost.copy()
    lost.rebuild()
    state = lost.lead()
    assert [path.split("/")[3] for path in state.dropped_versions] == ["a", "b"]
    assert all(dropped.event == -1 for dropped in state.dropped_versions.values())
