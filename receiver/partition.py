"""One partition that the group gave to this receiver: where it stands between assignment and revocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from forebay.messages import PartitionView
from forebay.values import Gap, TopicPartition
from receiver.block_draft import Piece


class Phase(Enum):
    WAITING = "waiting to claim"
    LOOKING = "looking"
    COMMITTING = "committing the position it looked up"
    CLAIMING = "claiming"
    ACTIVE = "active"
    INSPECTING = "a hole right at the start, asking the broker"
    TROUBLE = "trouble, to be told to the driver"
    REVOKING = "being revoked"


#: phases in which records of the current generation are taken in
TAKING = frozenset({Phase.ACTIVE})
#: phases from which records may be taken in under the token at hand
HOLDING = frozenset({Phase.ACTIVE, Phase.INSPECTING})


@dataclass(slots=True)
class Partition:
    """``expected``: the next offset to take in. ``accepted``: the durable position, as last answered. ``generation``:
    of the current start, 0 while there is none. ``held``: what waits in memory to be cut again under the next token,
    from ``held_from`` up to ``expected`` (rule 4)."""

    tp: TopicPartition
    phase: Phase = Phase.WAITING
    due: float = 0.0  # when a waiting phase goes on
    request: int = 0  # what a phase waits for, 0: nothing
    refusals: int = 0  # since it was last active: makes the delay grow
    detail: str = ""
    looked: PartitionView | None = None
    token: int = 0  # 0: never claimed
    life: int = 0
    topic_id: str = ""
    gap: Gap | None = None
    generation: int = 0
    expected: int = 0
    leader_epoch: int = -1  # of the record before ``expected``
    accepted: int = 0
    accepted_leader_epoch: int = -1
    at_start: bool = False  # nothing has come under the current generation
    hole_until: int = -1  # the first offset that came at the last start, if that left a hole
    held: list[Piece] = field(default_factory=list)
    held_from: int = -1  # -1: nothing is held
    trouble: str = ""  # kind, as in messages.Trouble
    trouble_topic_id: str = ""
    trouble_end: int = -1  # where a truncated log parts from what was read, -1: not told
    high_watermark: int = -1

    def hold(self, from_offset: int, pieces: list[Piece]) -> None:
        """Keeps what was cut under the token that is now stale; called in offset order."""
        if self.held_from < 0:
            self.held_from = from_offset
        self.held.extend(pieces)

    def forget_held(self) -> None:
        self.held = []
        self.held_from = -1
