"""What a process far from the configuration needs to reach Kafka. Knows no client, so it costs nothing to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class KafkaAccess(msgspec.Struct, frozen=True):
    """Can be pickled. ``options``: the pass-through keys of ``[kafka]``; they may hold passwords, so nothing shows them.

    ``group`` is never joined and nothing is committed for it: it is the one that the stream's rights are given for.
    ``timeout_seconds``: how long a broker may give nothing before it counts as unreachable.
    """

    options: Mapping[str, str]
    group: str
    timeout_seconds: float = 20.0

    def __repr__(self) -> str:
        return f"<KafkaAccess to {self.options.get('bootstrap.servers', '')}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("to", self.options.get("bootstrap.servers", ""))]
