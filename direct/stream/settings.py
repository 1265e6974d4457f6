"""The settings of a direct stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from direct.intake.access import IntakeAccess
from forebay.kafka.consume.planning import PartitionRates
from forebay.model.errors import UsageError
from forebay.model.values import check_name
from forebay.settings.schema import DeadLetterSettings
from wal.storage import StorageOptions


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of one direct stream. Raises UsageError for an invalid value.

    ``name``, ``checkpoint``: the stream's name, and the url of the folder with its checkpoint. ``storage``: options of
    that store. ``interval_seconds``: the batch interval. ``rates``: limits of each partition. ``backpressure``: whether
    the rate of completed batches limits the next ones; ``initial_rate``: the limit before the first is completed, in
    records per second, 0 for none. ``on_vanished``: whether lost offsets and partitions end the stream ("stop"), or are
    journalled and the stream continues ("record"). ``min_partitions``: the least number of tasks of a batch.
    ``max_queued_batches``: how many batches may wait. ``window_batches``: how many batches before one ``batch.window``
    can read. ``max_failures``: after how many failed attempts of a batch's job, ``retry_seconds`` apart, the stream
    ends. ``dead_letters``: where ``batch.decode`` stores records that it cannot decode. ``tracker``: the driver (its
    url, or an ``IntakeAccess``) of an intake that takes in the same topics. The stream reads records that Kafka has
    lost from the intake's WAL, which keeps them until then.
    """

    name: str
    checkpoint: str
    interval_seconds: float = 1.0
    rates: PartitionRates = PartitionRates()  # noqa: RUF009 - a value
    backpressure: bool = False
    initial_rate: float = 0.0
    on_vanished: Literal["stop", "record"] = "stop"
    min_partitions: int | None = None
    max_queued_batches: int = 2
    window_batches: int = 0
    max_failures: int = 4
    retry_seconds: float = 1.0
    storage: Mapping[str, Mapping[str, Any]] | None = None
    dead_letters: DeadLetterSettings = DeadLetterSettings()  # noqa: RUF009 - a value
    tracker: IntakeAccess | str | None = None

    @property
    def storage_options(self) -> StorageOptions:
        """``storage`` as the stores take it."""
        return {key: dict(own) for key, own in (self.storage or {}).items()}

    def __post_init__(self) -> None:
        try:
            check_name("stream", self.name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if (
            self.interval_seconds <= 0
            or self.max_queued_batches < 1
            or self.max_failures < 1
            or self.window_batches < 0
        ):
            raise UsageError(
                "interval_seconds must be above 0, max_queued_batches and max_failures at least 1, and window_batches at least 0"
            )
        if self.dead_letters.url and self.dead_letters.topic:
            raise UsageError("dead_letters: name a url or a topic, not both")
        if self.on_vanished not in ("stop", "record"):
            raise UsageError(f"on_vanished {self.on_vanished!r}: allowed are stop and record")
