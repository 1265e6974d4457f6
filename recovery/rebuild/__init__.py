"""Rebuild a lost journal from its newest snapshot copy and the frames of the WAL after it, as a new timeline.

The data flows in one direction::

    reading.read_evidence  →  evidence.Evidence  →  state.rebuilt (walk.Walk)  →  state.RebuildPlan  →  writing.steps

``evidence``, ``walk`` and ``state`` do no I/O. ``reading`` reads the stores and changes nothing. ``writing`` carries out the
rebuild. A crash after any of its steps leaves a journal that no driver leads.
"""

from __future__ import annotations

from recovery.rebuild.evidence import Evidence
from recovery.rebuild.reading import newest_copy, read_evidence, snapshot_copies
from recovery.rebuild.state import RebuildPlan, rebuilt
from recovery.rebuild.writing import rebuild, refuse_intact, steps

__all__ = [
    "Evidence",
    "RebuildPlan",
    "newest_copy",
    "read_evidence",
    "rebuild",
    "rebuilt",
    "refuse_intact",
    "snapshot_copies",
    "steps",
]
