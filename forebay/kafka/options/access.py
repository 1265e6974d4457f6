"""How a process without the configuration, such as a Spark task, reaches Kafka. Imports no client, so the import is cheap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from forebay.settings.schema import Settings

#: the defaults of ``kafka.read_timeout`` and ``kafka.read_prefetch``, for tasks that do not import the settings
TIMEOUT_SECONDS = 20.0
PREFETCH_BYTES = 8_000_000


class KafkaAccess(msgspec.Struct, frozen=True):
    """How Kafka is reached for reading exact offsets. Can be pickled.

    ``options``: the pass-through keys of ``[kafka]``. They may contain passwords, so ``repr`` does not show them.
    ``group``: the group for which the stream has access rights. No consumer joins it, and nothing is committed for it.
    ``timeout_seconds``: maximum time a broker may return no data or leave a request unanswered.
    ``prefetch_bytes``: maximum bytes of messages that librdkafka fetches ahead, beside the ranges that are read.
    """

    options: Mapping[str, str]
    group: str
    timeout_seconds: float = TIMEOUT_SECONDS
    prefetch_bytes: int = PREFETCH_BYTES

    @classmethod
    def of(cls, settings: Settings) -> KafkaAccess:
        """Return the access of tasks of a stream from Kafka."""
        kafka = settings.kafka
        return cls(kafka.options, settings.group, float(kafka.read_timeout), int(kafka.read_prefetch))

    def __repr__(self) -> str:
        return f"<KafkaAccess to {self.options.get('bootstrap.servers', '')}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("to", self.options.get("bootstrap.servers", ""))]
