"""Damage to accepted blocks in the WAL, once the faults of a run have ended: a task meets it, or an operator recovers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from forebay.model.values import Block
from wal.segments.frame import aligned

if TYPE_CHECKING:
    from tests.simulation.world import World

#: maximum number of blocks that are damaged
BLOCKS_MAX = 3


class Damage:
    """Damages blocks once in a run with ``Options.damage``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_done = False

    def is_due(self, last: bool) -> bool:
        """Return whether to damage blocks now: when a batch needs one. ``last``: or when the journal names one."""
        world = self._world
        if self._is_done or not world.options.damage or world.invariants.lost:
            return False
        return bool(self._blocks(needed=True) or (last and self._blocks(needed=False)))

    def act(self) -> None:
        """Damage frames of accepted blocks alone, at most one in a segment, in a WAL without other damage.

        The bytes of a block that is not accepted would be lost with no recovery, and its report may still arrive.
        """
        self._is_done = True
        wal, random = self._world.wal, Random(self._world.options.damage)
        wal.heal()
        blocks = self._blocks(needed=True) or self._blocks(needed=False)
        for block in random.sample(blocks, min(len(blocks), random.randint(1, BLOCKS_MAX))):
            handle = block.handle
            is_last = handle.offset + aligned(handle.length) >= wal.durable_bytes(handle.path)
            kind = random.choice(("flip", "cut")) if is_last else "flip"
            wal.damage(handle.path, kind, handle.offset + random.randrange(handle.length))

    def _blocks(self, needed: bool) -> list[Block]:
        """Return the blocks that the journal names. ``needed``: those that a batch still has to read."""
        state = self._world.invariants.durable
        if state is None:
            return []
        return [
            block
            for block in state.blocks.values()
            if block.handle.path not in state.cleaning_segments and not (needed and block.id in state.released)
        ]
