"""Damaged copies that this host's agent set aside: listed, and restored if the journal proves that their records are intact.

Without a WAL this is all that ``forebay recover`` can do, since a block exists only as copies.
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
from wal.blocks.set_aside import block_of, drop_set_aside, put_back, read_set_aside
from wal.reading import BlockReference, check_same

if TYPE_CHECKING:
    from driver.journal.state import State
    from forebay.model.values import Block
    from wal.storage import Storage


class DamagedCopy(msgspec.Struct, frozen=True):
    """One damaged copy.

    ``ranges``: the ranges of its block, if the journal names the block. ``finding``: the verdict on the copy, as a sentence.
    ``waits``: whether ``forebay recover --apply`` can restore it. ``lost``: whether its records are damaged too.
    """

    path: str
    block_id: str
    ranges: tuple[str, ...]
    needed: bool
    finding: str
    waits: bool = False
    lost: bool = False


class DamagedCopiesPlan(msgspec.Struct, frozen=True):
    """What ``forebay recover`` will do, or has done, with this host's damaged copies. ``directory``: where this host's copies
    are."""

    stream: str
    directory: str
    applied: bool
    damaged: tuple[DamagedCopy, ...]

    @property
    def open(self) -> bool:
        """Whether an operator must act, for instance by running ``--apply``."""
        return any(copy.waits or (copy.lost and copy.needed) for copy in self.damaged)


def damaged_copies(directory: str | Path, stream: str) -> list[tuple[str, Path]]:
    """Return block ids and paths of the copies that this host's agent set aside, sorted."""
    folder = Path(directory, stream)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((block_id, folder / name) for name in names if (block_id := block_of(name)) is not None)


def plan_copies(settings: Settings, journal_storage: Storage) -> DamagedCopiesPlan:
    """Return what can be done with the damaged copies; change nothing.

    Raises UsageError if there is no journal; CorruptionError or NewerVersionError if it can't be read.
    """
    return _plan(settings, read_state(journal_storage, settings.stream), applies=False)


def repair_copies(settings: Settings, journal_storage: Storage) -> DamagedCopiesPlan:
    """Restore the copies that can be restored, and return what was done.

    The journal is only read, so driver, receivers and agent may run meanwhile. May be killed at any step and called again.
    Raises as :func:`plan_copies`, and StoreError.
    """
    return _plan(settings, read_state(journal_storage, settings.stream), applies=True)


def _plan(settings: Settings, state: State, applies: bool) -> DamagedCopiesPlan:
    directory = settings.agent.blocks
    found = [
        _copy(directory, state, block_id, path, applies)
        for block_id, path in damaged_copies(directory, settings.stream)
    ]
    return DamagedCopiesPlan(settings.stream, str(Path(directory, settings.stream)), applies, tuple(found))


def _copy(directory: str, state: State, block_id: str, path: Path, applies: bool) -> DamagedCopy:
    block = state.blocks.get(block_id)
    if block is None:
        return DamagedCopy(
            str(path), block_id, (), False, "the journal does not name the block: the driver will have the copy deleted"
        )
    ranges = tuple(r.label for r in block.meta.ranges)
    needed = is_needed(state, block_id)
    if _is_whole(directory, block):
        if applies:
            drop_set_aside(path)
        return DamagedCopy(str(path), block_id, ranges, needed, "this host has a whole copy of the block too")
    try:
        if applies:
            written = put_back(directory, path, block)
            return DamagedCopy(str(path), block_id, ranges, needed, f"restored as {written.name}")
        read_set_aside(path, block)
    except (CorruptionError, FileNotFoundError) as error:
        return DamagedCopy(str(path), block_id, ranges, needed, f"its records are damaged too: {error}", lost=True)
    return DamagedCopy(str(path), block_id, ranges, needed, "its records are intact: --apply restores it", waits=True)


def _is_whole(directory: str, block: Block) -> bool:
    """Return whether one of this host's copies passes a reader's checks."""
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


def sentences(plan: DamagedCopiesPlan) -> list[str]:
    """Return a sentence for each copy that a person or ``--apply`` has to handle, with the next step."""
    said = [
        f"a damaged copy of block {c.block_id} with {', '.join(c.ranges)} can be restored: run `forebay recover --apply`"
        for c in plan.damaged
        if c.waits
    ]
    return said + [
        f"the damaged copy {c.path} of block {c.block_id} with {', '.join(c.ranges)} can't be restored; another host may have a "
        "copy: run `forebay recover` there. `forebay status` shows whether its batch waits"
        for c in plan.damaged
        if c.lost and c.needed
    ]
