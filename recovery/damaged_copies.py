"""Damaged copies that this host's agent set aside: listed, and restored if the journal proves that their records are intact.

Without a WAL this is all that ``forebay recover`` can do, since a block exists only as copies.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.model.errors import CorruptionError, NewerVersionError, StoreError
from forebay.settings.schema import Settings
from recovery.examination import is_needed, read_state
from wal.blocks import cached_path, local_path, read_local
from wal.blocks.local_writing import make_durable
from wal.blocks.set_aside import block_of, drop_set_aside, put_back, read_set_aside
from wal.reading import BlockReference, check_same
from wal.storage import store_error

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
    are. ``unreadable``: why it can't be listed; "" if it was."""

    stream: str
    directory: str
    applied: bool
    damaged: tuple[DamagedCopy, ...]
    unreadable: str = ""

    @property
    def open(self) -> bool:
        """Whether an operator must act, for instance by running ``--apply``."""
        return bool(self.unreadable) or any(copy.waits or (copy.lost and copy.needed) for copy in self.damaged)


def copy_names(directory: str | Path, stream: str) -> list[str]:
    """Return the names of all files in this host's folder of a stream; none if it does not exist.

    Raises StoreError if the folder can't be listed.
    """
    folder = Path(directory, stream)
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error, f"{folder} can't be listed") from error


def damaged_copies(directory: str | Path, stream: str) -> list[tuple[str, Path]]:
    """Return block ids and paths of the copies that this host's agent set aside, sorted. Raises StoreError."""
    folder = Path(directory, stream)
    names = copy_names(directory, stream)
    return sorted((block_id, folder / name) for name in names if (block_id := block_of(name)) is not None)


def plan_copies(settings: Settings, journal_storage: Storage) -> DamagedCopiesPlan:
    """Return what can be done with the damaged copies; change nothing.

    Raises UsageError if there is no journal; CorruptionError or NewerVersionError if it can't be read.
    """
    return _plan(settings, read_state(journal_storage, settings.stream), applies=False)


def repair_copies(settings: Settings, journal_storage: Storage) -> DamagedCopiesPlan:
    """Restore the copies that can be restored, and return what was done.

    The journal is only read, so driver, receivers and agent may run meanwhile. May be killed at any step and called again.
    A copy that can't be read, restored or deleted is a finding. Raises as :func:`plan_copies`.
    """
    return _plan(settings, read_state(journal_storage, settings.stream), applies=True)


def _plan(settings: Settings, state: State, applies: bool) -> DamagedCopiesPlan:
    directory = settings.agent.blocks
    folder = str(Path(directory, settings.stream))
    try:
        copies = damaged_copies(directory, settings.stream)
    except StoreError as error:
        return DamagedCopiesPlan(settings.stream, folder, applies, (), str(error))
    found = [_copy(directory, state, block_id, path, applies) for block_id, path in copies]
    return DamagedCopiesPlan(settings.stream, folder, applies, tuple(found))


def _copy(directory: str, state: State, block_id: str, path: Path, applies: bool) -> DamagedCopy:
    block = state.blocks.get(block_id)
    if block is None:
        return DamagedCopy(
            str(path), block_id, (), False, "the journal does not name the block: the driver will have the copy deleted"
        )
    ranges = tuple(r.label for r in block.meta.ranges)
    needed = is_needed(state, block_id)
    finding, waits, lost = _dealt_with(directory, block, path, applies)
    return DamagedCopy(str(path), block_id, ranges, needed, finding, waits, lost)


def _dealt_with(directory: str, block: Block, path: Path, applies: bool) -> tuple[str, bool, bool]:
    """Restore or delete the copy if ``applies``. Return its finding, whether it waits for that, and whether it is lost."""
    if (whole := _whole_copy(directory, block)) is not None:
        finding = "this host has a whole copy of the block too"
        try:
            if applies:
                make_durable(whole)  # it may be of a restoration that failed at this
                drop_set_aside(path)
        except StoreError as error:
            finding = f"{finding}, but {error}"
        return finding, False, False
    try:
        read_set_aside(path, block)
    except StoreError as error:  # of this file: the others may be readable
        return str(error), False, True
    except (CorruptionError, FileNotFoundError) as error:
        return f"its records are damaged too: {error}", False, True
    if not applies:
        return "its records are intact: --apply restores it", True, False
    try:
        written = put_back(directory, path, block)
    except (StoreError, CorruptionError, FileNotFoundError) as error:
        return f"its records are intact, but it was not restored: {error}", True, False
    return f"restored as {written.name}", False, False


def _whole_copy(directory: str, block: Block) -> Path | None:
    """Return this host's copy that passes a reader's checks; None if there is none."""
    for path in (
        local_path(directory, block.meta.stream, block.id),
        cached_path(directory, block.meta.stream, block.id),
    ):
        try:
            check_same(BlockReference.of(block), read_local(path), str(path))
            return path
        except (FileNotFoundError, CorruptionError, NewerVersionError, StoreError):
            continue
    return None


def sentences(plan: DamagedCopiesPlan) -> list[str]:
    """Return a sentence for each copy that a person or ``--apply`` has to handle, with the next step."""
    said = []
    if plan.unreadable:
        said.append(
            f"{plan.unreadable}; no damaged copy was looked at: correct the folder's rights or its disk, then run "
            "`forebay recover` again"
        )
    for c in plan.damaged:
        name = f"block {c.block_id} with {', '.join(c.ranges)}"
        if c.waits and plan.applied:
            said.append(f"the damaged copy {c.path} of {name}: {c.finding}; run `forebay recover --apply` again")
        elif c.waits:
            said.append(f"a damaged copy of {name} can be restored: run `forebay recover --apply`")
    return said + [
        f"the damaged copy {c.path} of block {c.block_id} with {', '.join(c.ranges)} can't be restored ({c.finding}); another "
        "host may have a copy: run `forebay recover` there. `forebay status` shows whether its batch waits"
        for c in plan.damaged
        if c.lost and c.needed
    ]
