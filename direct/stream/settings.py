"""The settings of a direct stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from direct.intake.access import IntakeAccess
from driver.decisions.rate import Gains
from forebay.kafka.consume.planning import PartitionRates, Rates
from forebay.model.errors import UsageError
from forebay.model.identifiers import check_name
from forebay.settings.schema import DeadLetterSettings, DriverSettings
from forebay.settings.schema.constraints import check_web_hook
from wal.storage import StorageOptions

#: defaults of what a stream with receivers has too
_DRIVER = DriverSettings(journal="")
#: settings that are whole numbers from 1
_FROM_ONE = (
    "batch_history",
    "concurrent_jobs",
    "listener_queue",
    "listener_queue_bytes",
    "max_failures",
    "max_queued_batches",
)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of one direct stream. Raises UsageError for an invalid value.

    ``name``, ``checkpoint``: the stream's name, and the url of the folder with its checkpoint. ``storage``: options of
    that store. ``interval_seconds``: the batch interval. ``rates``: limits of each partition, or a function that is called
    with each partition for each batch and returns its limits. ``backpressure``: whether the rate of completed batches
    limits the next ones; ``initial_rate``: the limit before the first is completed, in records per second, 0 for none;
    ``gains``: of the PID controller that learns the rate. ``on_vanished``: whether lost offsets and partitions end the
    stream ("stop"), or are journalled and the stream continues ("record"). ``min_partitions``: the least number of tasks of
    a batch. ``concurrent_jobs``: how many batches run at the same time; they begin in order. ``max_queued_batches``: how
    many batches may wait. ``empty_batches``: whether an interval without records gives a batch too. ``window_batches``: how
    many batches before one ``batch.window`` can read. ``max_failures``: after how many failed attempts of a batch's job,
    ``retry_seconds`` apart, the stream ends. ``dead_letters``: where ``batch.decode`` stores records that it cannot decode.
    ``tracker``: the driver (its url, or an ``IntakeAccess``) of an intake that takes in the same topics. The stream reads
    records that Kafka has lost from the intake's WAL, which keeps them until then.

    ``batch_history``: how many completed batches ``DirectStream.batches`` lists. ``web_hook``: the url to which events are
    posted as JSON, each request for at most ``web_hook_timeout`` seconds. ``listener_queue``, ``listener_queue_bytes``: how
    many events, and how many bytes of them, may wait for a listener or the web hook; later ones are dropped and counted.
    """

    name: str
    checkpoint: str
    interval_seconds: float = 1.0
    rates: Rates = PartitionRates()  # noqa: RUF009 - a value
    backpressure: bool = False
    initial_rate: float = 0.0
    gains: Gains = Gains()  # noqa: RUF009 - a value
    on_vanished: Literal["stop", "record"] = "stop"
    min_partitions: int | None = None
    concurrent_jobs: int = _DRIVER.concurrent_jobs
    max_queued_batches: int = 2
    empty_batches: bool = False
    window_batches: int = 0
    max_failures: int = _DRIVER.job_max_failures
    retry_seconds: float = float(_DRIVER.job_retry_delay)
    storage: Mapping[str, Mapping[str, Any]] | None = None
    dead_letters: DeadLetterSettings = DeadLetterSettings()  # noqa: RUF009 - a value
    tracker: IntakeAccess | str | None = None
    batch_history: int = _DRIVER.batch_history
    web_hook: str | None = field(default=None, repr=False)  # may contain a secret
    web_hook_timeout: float = float(_DRIVER.web_hook_timeout)
    listener_queue: int = _DRIVER.listener_queue
    listener_queue_bytes: int = int(_DRIVER.listener_queue_bytes)

    @property
    def storage_options(self) -> StorageOptions:
        """``storage`` as the stores take it."""
        return {key: dict(own) for key, own in (self.storage or {}).items()}

    def __post_init__(self) -> None:
        try:
            check_name("stream", self.name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        for name in ("interval_seconds", "web_hook_timeout"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0")
        for name in _FROM_ONE:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1")
        if self.window_batches < 0:
            raise UsageError("window_batches must be at least 0")
        if not isinstance(self.rates, PartitionRates) and not callable(self.rates):
            raise UsageError(f"rates {self.rates!r}: allowed are a PartitionRates, and a function that returns one")
        if min(self.gains.proportional, self.gains.integral, self.gains.derivative, self.gains.min_rate) < 0:
            raise UsageError(f"{self.gains}: allowed are numbers from 0")
        if self.web_hook is not None:
            try:
                check_web_hook(self.web_hook)
            except ValueError as error:
                raise UsageError(f"web_hook: {error}") from None
        if self.dead_letters.url and self.dead_letters.topic:
            raise UsageError("dead_letters: name a url or a topic, not both")
        if self.on_vanished not in ("stop", "record"):
            raise UsageError(f"on_vanished {self.on_vanished!r}: allowed are stop and record")
