"""What each event of the journal changes: :func:`apply`, the only function that changes the driver's state (INV-7).

:func:`apply` assumes that the decision behind an event was right. It checks only the invariants: if an event breaks one, it
raises :class:`driver.journal.state.BrokenInvariant`, and the process must end.
"""

from __future__ import annotations

from typing_extensions import assert_never

from driver.journal import events as ev
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import batches, blocks, clean_up, cursors, direct, partitions, receivers, replays


def apply(state: State, event: ev.Event) -> None:
    """Apply ``event`` to ``state``. Raises BrokenInvariant if they contradict each other."""
    try:
        _change(state, event)
    except (LookupError, ValueError, StopIteration) as error:
        raise BrokenInvariant(f"{type(event).__name__} contradicts the state: {error!r}") from error
    state.events += 1


def _change(state: State, event: ev.Event) -> None:
    match event:  # the most frequent events first
        case ev.BlockAdded():
            blocks.block_added(state, event)
        case ev.CursorMoved():
            cursors.cursor_moved(state, event)
        case ev.BatchAllocated():
            batches.batch_allocated(state, event)
        case ev.BatchCompleted():
            batches.batch_completed(state, event)
        case ev.StreamCreated():
            partitions.stream_created(state, event)
        case ev.PartitionsAdded():
            partitions.partitions_added(state, event)
        case ev.IncarnationBegun():
            partitions.incarnation_begun(state, event)
        case ev.ReceiverRegistered():
            receivers.receiver_registered(state, event)
        case ev.ReceiverFenced():
            receivers.receiver_fenced(state, event)
        case ev.ReceiversForgotten():
            receivers.receivers_forgotten(state, event)
        case ev.ClaimGiven():
            receivers.claim_given(state, event)
        case ev.ClaimReleased():
            receivers.claim_released(state, event)
        case ev.WriterSettled():
            receivers.writer_settled(state, event)
        case ev.EpochBarred():
            receivers.epoch_barred(state, event)
        case ev.BlockMoved():
            blocks.block_moved(state, event)
        case ev.FaultRecorded():
            partitions.fault_found(state, event)
        case ev.AdoptionTried():
            partitions.adoption_tried(state, event)
        case ev.GapRecorded():
            partitions.gap_recorded(state, event)
        case ev.BatchSkipped():
            batches.batch_skipped(state, event)
        case ev.PauseChanged():
            batches.pause_changed(state, event)
        case ev.OutputCompleted():
            batches.output_completed(state, event)
        case ev.WindowChanged():
            batches.window_changed(state, event)
        case ev.JobFailed():
            batches.job_failed(state, event)
        case ev.RateLearned():
            batches.rate_learned(state, event)
        case ev.LossAccepted():
            batches.loss_accepted(state, event)
        case ev.ReplayBegun():
            replays.replay_begun(state, event)
        case ev.ReplayCompleted():
            replays.replay_completed(state, event)
        case ev.CleanupIntended():
            clean_up.cleanup_intended(state, event)
        case ev.CleanupDone():
            clean_up.cleanup_done(state, event)
        case ev.BatchesArchived():
            clean_up.batches_archived(state, event)
        case ev.SnapshotCopied():
            clean_up.snapshot_copied(state, event)
        case ev.CursorOpened():
            cursors.cursor_opened(state, event)
        case ev.CursorEnded():
            cursors.cursor_ended(state, event)
        case ev.SpansBegun():
            direct.spans_begun(state, event)
        case ev.SpansEnded():
            direct.spans_ended(state, event)
        case ev.SpansAllocated():
            direct.spans_allocated(state, event)
        case ev.SpansSkipped():
            direct.spans_skipped(state, event)
        case ev.CursorNamed():
            direct.cursor_named(state, event)
        case _:
            assert_never(event)
