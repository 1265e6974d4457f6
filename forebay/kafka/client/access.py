"""What a process far from the configuration needs to reach Kafka. Knows no client, so it costs nothing to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from forebay.settings.schema import Settings


class KafkaAccess(msgspec.Struct, frozen=True):
    """Can be pickled. ``options``: the pass-through keys of ``[kafka]``; they may hold passwords, so nothing shows them.

    ``group`` is never joined and nothing is committed for it: it is the one that the stream's rights are given for.
    ``timeout_seconds``: how long a broker may give nothing, or leave a question unanswered, before it counts as unreachable.
    ``prefetch_bytes``: bound on what librdkafka holds of fetched messages, beside the ranges that are read.
    """

    options: Mapping[str, str]
    group: str
    timeout_seconds: float = 20.0
    prefetch_bytes: int = 8_000_000

    @classmethod
    def of(cls, settings: Settings) -> KafkaAccess | None:
        """What tasks are given; None where they shall not read from Kafka."""
        kafka = settings.kafka
        if not kafka.read_blocks or settings.custom_source:
            return None
        return cls(kafka.options, settings.group, float(kafka.read_timeout), int(kafka.read_prefetch))

    def __repr__(self) -> str:
        return f"<KafkaAccess to {self.options.get('bootstrap.servers', '')}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("to", self.options.get("bootstrap.servers", ""))]
