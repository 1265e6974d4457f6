"""The agent's metrics: definitions, what its routes count, and what a scrape reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from executor_agent.store import Usage
from forebay.messages import ReceiverProcess
from forebay.metrics.definition import counter, gauge
from forebay.metrics.exposition import BUILD_INFO, Metrics
from forebay.metrics.samples import Samples
from forebay.process.clock import Clock

OUTCOMES = ("whole", "range", "absent")

BLOCKS = gauge("forebay_agent_blocks", "Blocks in the block folder of the host, copies included.")
USED = gauge("forebay_agent_used_bytes", "Bytes of all files in the block folder.")
FREE = gauge("forebay_agent_free_bytes", "Bytes that the quota and the filesystem still allow.")
QUOTA = gauge("forebay_agent_quota_bytes", "Maximum of used bytes (agent.quota).")
DAMAGED = gauge("forebay_agent_damaged_blocks", "Blocks with a damaged copy, which was set aside and is not served.")
UNDELETED = gauge(
    "forebay_agent_undeleted_blocks", "Blocks that the driver orders to delete and that the agent cannot delete."
)
COPIES = gauge("forebay_agent_copies", "Copies among the blocks: replicas, and cached copies of what tasks read.")
DELETED = counter("forebay_agent_deleted_blocks_total", "Blocks deleted by command of the driver.")
REFUSED = counter("forebay_agent_refused_commands_total", "Commands of a superseded driver, which were refused.")
REACHABLE = gauge("forebay_agent_driver_reachable", "1 while the driver answers heartbeats, else 0.")
RECEIVERS = gauge("forebay_agent_receivers", "Managed receivers that run on the host.")
HTTP_REQUESTS = gauge("forebay_agent_http_requests", "HTTP requests that the agent is answering.")
SERVED = counter(
    "forebay_agent_served_blocks_total",
    "Blocks that were requested: whole, as a range, or not on the host (absent).",
    "outcome",
    values=OUTCOMES,
)
SERVED_BYTES = counter("forebay_agent_served_bytes_total", "Bytes of blocks in answers, counted when an answer begins.")
KEPT = counter("forebay_agent_kept_copies_total", "Copies received and stored: replicas and cached copies.")
KEPT_BYTES = counter("forebay_agent_kept_bytes_total", "Bytes of the copies received and stored.")

COUNTED = (SERVED, SERVED_BYTES, KEPT, KEPT_BYTES)
READ = (
    BUILD_INFO,
    BLOCKS,
    USED,
    FREE,
    QUOTA,
    DAMAGED,
    UNDELETED,
    COPIES,
    DELETED,
    REFUSED,
    REACHABLE,
    RECEIVERS,
    HTTP_REQUESTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """What a scrape reads. ``deleted``, ``refused``: since the agent's start."""

    usage: Usage
    deleted: int
    refused: int
    undeleted_blocks: int
    driver_reachable: bool
    receivers: tuple[ReceiverProcess, ...]
    http_requests: int


class AgentMetrics:
    """The metrics of one agent. ``view`` is called at each scrape, in its thread. ``quota_bytes``: as ``agent.quota``."""

    def __init__(
        self, *, stream: str, host: str, release: str, quota_bytes: int, clock: Clock, view: Callable[[], AgentView]
    ) -> None:
        self._quota_bytes = quota_bytes
        self._view = view
        labels = {"stream": stream, "host": host}
        self.metrics = Metrics(COUNTED, labels=labels, release=release, clock=clock, read=self._read)

    def served(self, outcome: str, size_bytes: int = 0) -> None:
        """Count a request for a block. ``outcome``: one of ``OUTCOMES``."""
        self.metrics.count(SERVED, outcome)
        self.metrics.count(SERVED_BYTES, amount=size_bytes)

    def kept(self, size_bytes: int) -> None:
        """Count a copy that was received and stored."""
        self.metrics.count(KEPT)
        self.metrics.count(KEPT_BYTES, amount=size_bytes)

    def _read(self, samples: Samples) -> None:
        view = self._view()
        usage = view.usage
        samples.set(BLOCKS, usage.blocks)
        samples.set(USED, usage.used_bytes)
        samples.set(FREE, usage.free_bytes)
        samples.set(QUOTA, self._quota_bytes)
        samples.set(DAMAGED, len(usage.damaged))
        samples.set(UNDELETED, view.undeleted_blocks)
        samples.set(COPIES, len(usage.copies))
        samples.set(DELETED, view.deleted)
        samples.set(REFUSED, view.refused)
        samples.set(REACHABLE, view.driver_reachable)
        samples.set(RECEIVERS, sum(process.running for process in view.receivers))
        samples.set(HTTP_REQUESTS, view.http_requests)
