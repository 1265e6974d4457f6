"""Counts the lines of each batch by topic. Each batch has its own file, which a rerun replaces with the same content."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("LINES_RESULTS", "lines-results"))


def process(batch: Any) -> None:
    """Write the counts of one batch. Forebay calls this for each batch, in order."""
    counts: Counter[str] = Counter()
    for rows in batch.read():  # Arrow; with engine = "spark", batch.df is also available
        counts.update(rows.column("topic").to_pylist())
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{batch.id}.json").write_text(json.dumps(counts))
