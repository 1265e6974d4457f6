"""Joint batches: one batch of each of several streams, of the same time, for one job. Decision logic, without I/O.

One stream leads: its job gets the joint batch. The others follow. Each stream has a journal of its own, so a joint batch begins
with events in several journals. Their order makes it safe to end the process between any two of them:

1. Each follower journals its batch.
2. The leader journals its batch, and names the followers' batches. From then on they belong together for good.
3. The leader journals the completion, or an operator's skip.
4. Each follower journals the same of its batch.

A follower's batch that the leader has not named is named by the leader's next batch. A follower's batch that the leader has named
ends as the leader's batch did, without the job. While one joint batch is unfinished in any stream, no other is made, so the
newest one in the leader's journal decides about every unfinished batch of a follower.
"""

from __future__ import annotations

from dataclasses import dataclass

from driver.journal.state import State


@dataclass(frozen=True, slots=True)
class JointNeeds:
    """What a stream needs of the next joint batch.

    ``ready``: whether this stream's batch can be made, or is there. ``waits``: whether blocks, or a batch that is there, wait for
    one. ``batch_id``, ``time_ms``: the batch that is there, and its time; None: it is to be made.
    """

    ready: bool
    waits: bool
    batch_id: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a follower's batch. ``ended``: whether the leader's batch has ended. ``skipped``: who skipped it, and why;
    "": it was not skipped."""

    ended: bool
    skipped: str = ""


def joint_needs(state: State, leader: str, named: int = 0) -> JointNeeds:
    """Return what a stream needs. ``leader``: the stream that makes the joint batch. ``named``: if another stream leads, this
    stream's batch in the leader's newest joint batch; 0: there is none. A batch made for another leader is waited for."""
    waits = bool(state.waiting)
    if not state.created or state.pause is not None or state.replay is not None:
        return JointNeeds(False, waits)
    unfinished = state.unfinished()
    if not unfinished:
        return JointNeeds(True, waits)
    if leader == state.stream or any(batch.batch_id == named for batch in unfinished):
        return JointNeeds(False, waits)
    first, joint = unfinished[0], state.joint
    if joint is not None and joint.batch_id == first.batch_id and joint.leader != leader:
        return JointNeeds(False, waits)
    return JointNeeds(True, True, first.batch_id, first.time_ms)


def named_by(leader: State) -> dict[str, int]:
    """Return each follower with its batch in the leader's newest joint batch."""
    return leader.joint.partners if leader.joint is not None and leader.joint.leader == leader.stream else {}


def fate_of(leader: State, follower: str, batch_id: int) -> Fate:
    """Return what becomes of an unfinished batch of ``follower``."""
    if leader.joint is None or named_by(leader).get(follower) != batch_id:
        return Fate(False)
    batch = leader.batches.get(leader.joint.batch_id)  # a batch leaves the state only after its completion
    return Fate(batch is None or batch.completed_ms is not None, leader.joint.skipped)
