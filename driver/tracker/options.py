"""Options of the tracker. The defaults are the same as in the settings (``forebay.settings.schema``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from driver.decisions.allocation import UNLIMITED, BatchLimits
from driver.journal.receiver_limits import IdLimits
from forebay.settings.schema import DriverSettings
from wal.decisions.retention import RetentionLimits

_DEFAULTS = DriverSettings(journal="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """Copies of blocks on hosts.

    ``copies``: without a WAL, hosts that must hold a block before it is accepted; beside a WAL, hosts that hold it if they can.
    ``beside_wal``: the stream has a WAL, which holds every block. ``timeout_seconds``: how long after its agent's last
    heartbeat a host counts as available. ``room_bytes``: free bytes that a host must have to take replicas.
    """

    copies: int
    timeout_seconds: float
    room_bytes: int
    beside_wal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorRules:
    """How long cursors live without heartbeats.

    ``in_use_seconds``: how long after its last heartbeat a cursor stays locked to its user. ``timeout_seconds``: how long after
    its last heartbeat a cursor expires.
    """

    in_use_seconds: float = float(_DEFAULTS.cursor_lease)
    timeout_seconds: float = float(_DEFAULTS.cursor_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """Options of a tracker.

    ``on_gap``: "record" or "stop", as ``kafka.on_gap``. ``max_queued_batches``: maximum number of batches beyond the completed
    prefix; no further batch is allocated. ``retention``: when the WAL's segments are due for deletion, unless a request has
    limits of its own. ``batch_limits``: the limits of one batch. ``copy_rules``: None if the stream has a WAL and no replicas.
    ``host_timeout_seconds``: how long after its last heartbeat an agent keeps its host's address. ``id_limits``: how many
    receiver ids the stream keeps. ``batch_interval_ms`` (0: no interval) and ``concurrent_jobs``: for the expectation of the next
    batch.
    """

    on_gap: str
    max_queued_batches: int
    retention: RetentionLimits
    batch_limits: BatchLimits = UNLIMITED
    copy_rules: CopyRules | None = None
    cursor_rules: CursorRules = CursorRules()
    host_timeout_seconds: float = float(_DEFAULTS.receiver_timeout)
    id_limits: IdLimits = field(default_factory=IdLimits)
    batch_interval_ms: int = round(_DEFAULTS.batch_interval * 1000)
    concurrent_jobs: int = _DEFAULTS.concurrent_jobs

    @property
    def has_wal(self) -> bool:
        return self.copy_rules is None or self.copy_rules.beside_wal
