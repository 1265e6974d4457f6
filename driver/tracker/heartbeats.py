"""The last heartbeat of each receiver and agent: not journalled, so a new driver begins without any."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import messages as m


@dataclass(slots=True)
class LastHeartbeat:
    """A receiver's last heartbeat. ``at``: when it arrived, in monotonic seconds."""

    heartbeat: m.HeartbeatRequest
    at: float


@dataclass(slots=True)
class LastAgentHeartbeat:
    """An agent's last heartbeat. ``at``: when it arrived, in monotonic seconds. ``copies``: ids of its cached copies."""

    heartbeat: m.AgentHeartbeatRequest
    at: float
    copies: tuple[str, ...] = ()
