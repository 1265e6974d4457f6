"""Rebuild a lost journal from its newest snapshot copy and the frames of the WAL after it, as a new timeline.

The data flows in one direction::

    reading.look  →  evidence.Evidence  →  state.rebuilt (walk.Walk)  →  state.Plan  →  writing.steps

``evidence``, ``walk`` and ``state`` decide on values alone. ``reading`` reads the stores and changes nothing. ``writing`` does
the rebuild in an order in which a crash after any step leaves a journal that no driver leads.
"""

from __future__ import annotations

from recovery.rebuild.evidence import Evidence
from recovery.rebuild.reading import look, newest_copy, snapshot_copies
from recovery.rebuild.state import Plan, rebuilt
from recovery.rebuild.writing import rebuild, refuse_intact, steps

__all__ = [
    "Evidence",
    "Plan",
    "look",
    "newest_copy",
    "rebuild",
    "rebuilt",
    "refuse_intact",
    "snapshot_copies",
    "steps",
]
