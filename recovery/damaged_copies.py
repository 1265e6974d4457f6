"""Damaged copies that this host's agent set aside: named, and put back where the journal proves that their records are whole.

Without a WAL this is all that ``forebay recover`` can do: the copies are all there is of a block.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.model.errors import CorruptionError, NewerVersionError
from forebay.settings.schema import Settings
from recovery.examination import is_needed, read_state
from wal.blocks import cached_path, local_path, read_local
from wal.reading import BlockReference, check_same
from wal.set_aside import block_of, drop_set_aside, put_back, read_set_aside

if TYPE_CHECKING:
    from driver.journal.state import State
    from forebay.model.values import Block
    from wal.storage import Storage


class DamagedCopy(msgspec.Struct, frozen=True):
    """``finding``: in words. ``waits``: ``forebay recover --apply`` puts it back. ``lost``: its records are damaged too.
    ``ranges``: of its block, if the journal names it."""

    path: str
    block_id: str
    ranges: tuple[str, ...]
    needed: bool
    finding: str
    waits: bool = False
    lost: bool = False


class CopiesPlan(msgspec.Struct, frozen=True):
    """``directory``: of this host's copies."""

    stream: str
    directory: str
    applied: bool
    damaged: tuple[DamagedCopy, ...]

    @property
    def open(self) -> bool:
        """Whether something waits for a person or for ``--apply``."""
        return any(copy.waits or (copy.lost and copy.needed) for copy in self.damaged)


def damaged_copies(directory: str | Path, stream: str) -> list[tuple[str, Path]]:
    """Block ids and paths of what this host's agent set aside, sorted."""
    folder = Path(directory, stream)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((block_id, folder / name) for name in names if (block_id := block_of(name)) is not None)


def look(settings: Settings, journal_storage: Storage) -> CopiesPlan:
    """Reads and changes nothing. Raises UsageError if there is no journal, CorruptionError or NewerVersionError if it can't be
    read."""
    return _plan(settings, read_state(journal_storage, settings.stream), applies=False)


def apply_plan(settings: Settings, journal_storage: Storage) -> CopiesPlan:
    """Puts back what can be. The journal is only read, so driver, receivers and agent may be at work. May be killed at any step
    and called again. Raises as :func:`look`, and StoreError."""
    return _plan(settings, read_state(journal_storage, settings.stream), applies=True)


def _plan(settings: Settings, state: State, applies: bool) -> CopiesPlan:
    directory = settings.agent.blocks
    found = [
        _copy(directory, state, block_id, path, applies)
        for block_id, path in damaged_copies(directory, settings.stream)
    ]
    return CopiesPlan(settings.stream, str(Path(directory, settings.stream)), applies, tuple(found))


def _copy(directory: str, state: State, block_id: str, path: Path, applies: bool) -> DamagedCopy:
    block = state.blocks.get(block_id)
    if block is None:
        return DamagedCopy(
            str(path), block_id, (), False, "the journal does not name the block: the driver has it deleted"
        )
    ranges = tuple(r.label for r in block.meta.ranges)
    needed = is_needed(state, block_id)
    if _is_whole(directory, block):
        if applies:
            drop_set_aside(path)
        return DamagedCopy(str(path), block_id, ranges, needed, "a whole copy is beside it")
    try:
        if applies:
            written = put_back(directory, path, block)
            return DamagedCopy(str(path), block_id, ranges, needed, f"put back as {written.name}")
        read_set_aside(path, block)
    except (CorruptionError, FileNotFoundError) as error:
        return DamagedCopy(str(path), block_id, ranges, needed, f"its records are damaged too: {error}", lost=True)
    return DamagedCopy(str(path), block_id, ranges, needed, "its records are whole: --apply puts it back", waits=True)


def _is_whole(directory: str, block: Block) -> bool:
    """Whether a reader takes one of this host's copies for the block."""
    for path in (
        local_path(directory, block.meta.stream, block.id),
        cached_path(directory, block.meta.stream, block.id),
    ):
        try:
            check_same(BlockReference.of(block), read_local(path), str(path))
            return True
        except (FileNotFoundError, CorruptionError, NewerVersionError):
            continue
    return False


def sentences(plan: CopiesPlan) -> list[str]:
    """One for each copy that waits for a person or for ``--apply``, with the way out."""
    said = [
        f"a damaged copy of block {c.block_id} with {', '.join(c.ranges)} can be made whole: `forebay recover --apply`"
        for c in plan.damaged
        if c.waits
    ]
    return said + [
        f"block {c.block_id} with {', '.join(c.ranges)} can't be read from {c.path}; another host may have a copy: "
        "run `forebay recover` there, or see `forebay status` for what its batch waits for"
        for c in plan.damaged
        if c.lost and c.needed
    ]
