"""The input of a rebuild: a snapshot copy, the blocks of the WAL after it, and the surviving part of the history. Data only,
without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver.journal.history import FinishedBatch
from driver.journal.state import State
from forebay.model.values import Block


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block that was written after the copy. ``whole``: its payload has the checksum that its header names."""

    block: Block
    whole: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """The findings in the stores from which the rebuild computes the new state.

    ``copy``: the state that the rebuild begins from, read from ``copy_path``. ``found``: blocks of the WAL that the copy does
    not know and whose offsets are after its positions. ``archived``: finished batches of the history that survived. ``gone``:
    segments with blocks of the copy that are no longer in the WAL. ``notes``: a sentence for each thing that could not be read.
    ``topic_ids``: topic → its id in Kafka, read after the WAL was; empty if no decision depends on it.
    """

    copy: State
    copy_path: str
    found: tuple[FoundBlock, ...]
    archived: tuple[FinishedBatch, ...]
    gone: frozenset[str]
    notes: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
