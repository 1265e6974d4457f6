"""A short description of a batch, for the Spark UI."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Protocol

from driver.batches.job.work import BatchWork

#: length of the offsets after which partitions are counted, not named: Spark sends the description along with each task
OFFSETS_LENGTH_MAX = 4_000


class _Range(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def from_offset(self) -> int: ...
    @property
    def until_offset(self) -> int: ...


def offsets_text(ranges: Iterable[_Range], length_max: int = OFFSETS_LENGTH_MAX) -> str:
    """Return the offsets of each partition, such as ``flights/0[0, 90), flights/1[5, 8)``; "" without ranges.

    After about ``length_max`` characters the partitions that are left are counted, as in ``… and 14 more partitions``.
    """
    parts: dict[tuple[str, int], list[_Range]] = defaultdict(list)
    for r in ranges:
        parts[r.topic, r.partition].append(r)
    named: list[str] = []
    length = 0
    for (topic, partition), own in sorted(parts.items()):
        if length >= length_max:
            break
        word = f"{topic}/{partition}[{min(r.from_offset for r in own)}, {max(r.until_offset for r in own)})"
        named.append(word)
        length += len(word) + 2
    more = len(parts) - len(named)
    return ", ".join(named) + (f" and {more} more partition{'s' if more > 1 else ''}" if more else "")


def job_description(work: BatchWork) -> str:
    """Return the description of the Spark jobs of a batch. The Spark UI shows it as HTML, so names are escaped."""
    run = f", replay {work.replay}" if work.replay else ""
    attempt = f", attempt {work.attempt}" if work.attempt > 1 else ""
    output = f", output {work.output}" if work.output else ""
    offsets = offsets_text(chain(work.ranges, work.spans))
    text = f"{work.stream}: batch {work.number} (id {work.batch_id}){run}{output}{attempt}, {work.records} records"
    return html.escape(f"{text}: {offsets}" if offsets else text, quote=False)
