"""The state of one partition from its assignment by the group to its revocation. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from forebay.messages import PartitionView
from forebay.model.values import Gap, TopicPartition
from receiver.blocks.pending_block import Piece


class Phase(Enum):
    WAITING = "waiting to claim"
    LOOKING = "looking up token and position"
    COMMITTING = "committing the position that was looked up"
    CLAIMING = "claiming"
    ACTIVE = "active"
    INSPECTING = "an unconfirmed gap, the broker is asked for the log's bounds"
    FAULT = "a fault, the driver decides what follows"
    REVOKING = "being revoked"


#: phases in which records of the current generation are taken in
TAKING = frozenset({Phase.ACTIVE})
#: phases from which records may be taken in under the current token
HOLDING = frozenset({Phase.ACTIVE, Phase.INSPECTING})


@dataclass(slots=True)
class Partition:
    """A row of the table in ``receiver.machine.membership.partitions``, which the parts of the machine share.

    The comment above each group of fields names the part that writes them, besides :meth:`grant`.
    """

    tp: TopicPartition

    # partitions; claims and faults set the phase of a request that they send
    phase: Phase = Phase.WAITING
    due: float = 0.0  # when a waiting phase goes on
    request: int = 0  # the request that a phase waits for, 0: none
    refusals: int = 0  # since it was last active; the delay grows with them
    detail: str = ""  # why it waits, for the status
    generation: int = 0  # of the current start, 0: the source does not read it

    # claims
    looked: PartitionView | None = None
    token: int = 0  # 0: never claimed
    incarnation: int = 0
    topic_id: str = ""
    gap: Gap | None = None  # just before the claimed position

    # buffer: what is taken in
    expected: int = 0  # the next offset to take in
    leader_epoch: int = -1  # of the record before ``expected``
    held: list[Piece] = field(default_factory=list)  # cut again under the next token, up to ``expected`` (rule 4)
    held_from: int = -1  # -1: nothing is held

    # reports
    accepted: int = 0  # the durable position, as last answered
    accepted_leader_epoch: int = -1

    # intake
    at_start: bool = False  # nothing has come under the current generation
    unconfirmed_gap_end: int = -1  # the first offset that came at the last start, if it left a gap
    high_watermark: int = -1

    # faults
    fault: str = ""  # kind, as in messages.Fault; "" for none
    fault_topic_id: str = ""
    fault_end: int = -1  # where a truncated log no longer holds what was read, -1: unknown

    def grant(self, view: PartitionView) -> None:
        """Note a granted claim: go on at the granted position under the new token."""
        self.token = view.token
        self.incarnation = view.incarnation
        self.topic_id = view.topic_id
        self.gap = view.preceding_gap
        self.accepted = self.expected = view.position
        self.accepted_leader_epoch = self.leader_epoch = view.leader_epoch
        self.unconfirmed_gap_end = -1
        self.fault = self.fault_topic_id = self.detail = ""
        self.fault_end = -1

    def hold(self, from_offset: int, pieces: list[Piece]) -> None:
        """Keep pieces that were cut under a token that is now stale. Call it in offset order."""
        if self.held_from < 0:
            self.held_from = from_offset
        self.held.extend(pieces)

    def forget_held(self) -> None:
        self.held = []
        self.held_from = -1
