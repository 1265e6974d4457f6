"""The status of a tracker beside which no other part reports anything."""

from __future__ import annotations

from driver.http.status import PartsStatus, status
from driver.tracker import Tracker
from forebay.messages import StatusAnswer


def shown(tracker: Tracker, now: float, timeout_seconds: float = 30.0, now_ms: int = 0) -> StatusAnswer:
    """Return the status at ``now``, of a driver to which a receiver is lost after ``timeout_seconds`` of silence."""
    service = PartsStatus(state="running")
    return status(tracker, service, release="test", now=now, now_ms=now_ms, receiver_timeout=timeout_seconds)
