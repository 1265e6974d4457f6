"""Requests to a store that are tried again, with a warning about a store that has not answered for some time."""

from __future__ import annotations

import logging
from collections.abc import Callable

import tenacity

from wal.storage.protocol import TransientError

_log = logging.getLogger("wal.storage")
#: time of failed attempts after which the log names the request, so that a process that waits for a store shows it
WARNED_AFTER_SECONDS = 5.0


def retrying(
    *,
    seconds: float,
    wait: tenacity.wait.wait_base,
    sleep: Callable[[float], None],
    attempts_min: int = 1,
    what: str = "",
) -> tenacity.Retrying:
    """Return what repeats a request after a TransientError, for ``seconds`` and at least ``attempts_min`` times.

    It raises the error of the last attempt. ``what``: what failed, for the warning, if the error does not name it.
    """
    return tenacity.Retrying(
        stop=tenacity.stop_all(tenacity.stop_after_delay(seconds), tenacity.stop_after_attempt(attempts_min)),
        wait=wait,
        retry=tenacity.retry_if_exception_type(TransientError),
        sleep=sleep,
        before_sleep=_warning_once(seconds, what),
        reraise=True,
    )


def _warning_once(seconds: float, what: str) -> Callable[[tenacity.RetryCallState], None]:
    warned = False

    def warn(state: tenacity.RetryCallState) -> None:
        nonlocal warned
        waited = state.seconds_since_start or 0.0
        if warned or waited < WARNED_AFTER_SECONDS or state.outcome is None:
            return
        warned = True
        error = state.outcome.exception()
        place = f"{what}: " if what else ""
        _log.warning("%s%s; the request is tried again for %.0f s more", place, error, max(0.0, seconds - waited))

    return warn
