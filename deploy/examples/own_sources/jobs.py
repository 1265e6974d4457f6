"""Counts the lines of each batch by where they came from; one file for each batch, so a rerun puts the same in its place."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("LINES_RESULTS", "lines-results"))


def process(batch: Any) -> None:
    """Called by Forebay for every batch, in order."""
    counts: Counter[str] = Counter()
    for rows in batch.read():  # Arrow; with engine = "spark" there is batch.df too
        counts.update(rows.column("topic").to_pylist())
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{batch.id}.json").write_text(json.dumps(counts))
