"""What a query's progress says of this source, in the words of Spark's Kafka source."""

from __future__ import annotations

import json
from typing import Protocol

from pyspark_forebay.offsets import Offsets
from pyspark_forebay.planning import behind


class SourceProgress(Protocol):
    """``pyspark.sql.streaming.listener.SourceProgress``: offsets as JSON, None or "null" where there are none."""

    @property
    def endOffset(self) -> str | None: ...  # noqa: N802
    @property
    def latestOffset(self) -> str | None: ...  # noqa: N802


def offsets_behind_latest(progress: SourceProgress) -> dict[str, str]:
    """``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` of ``query.lastProgress.sources[n]``:
    what Spark's source puts into ``metrics``, which a source in Python can't. Empty before the first batch.
    """
    end = json.loads(progress.endOffset or "null")
    latest = json.loads(progress.latestOffset or "null")
    if not end or not latest:
        return {}
    return behind(Offsets.of(end).at, Offsets.of(latest).at)
