"""A replay asked for: the history is read beside the deciding thread, which then decides (``driver.decisions.replay``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from driver.decisions.replay import HeldInKafka, Horizon, RewindTo, needed, no_spans
from driver.journal import history
from driver.tracker.requests import Ask, BeginReplay, Request
from forebay.messages import ReplayRequest
from forebay.model.errors import RefusedError, UsageError
from wal.storage import Storage

#: how often a replay is asked for again because batches moved to the history while it was read
REPLAY_ATTEMPTS = 10


def begin_replay(
    ask: Callable[[Request], Any],
    storage: Storage,
    stream: str,
    request: ReplayRequest,
    held_in_kafka: HeldInKafka = no_spans,
) -> Any:
    """The deciding thread's answer (``ask``) to ``request``. Of the history in ``storage`` no more is read than what the replay
    may need. Raises RefusedError, UsageError, CorruptionError, NewerVersionError, StoreError."""
    if bool(request.batch) == bool(request.time_ms):
        raise UsageError("a replay begins at a batch or at a time: name one of the two")
    to = RewindTo(request.batch, request.time_ms)
    for last in (*[False] * (REPLAY_ATTEMPTS - 1), True):
        horizon = ask(Ask(partial(Horizon.of, held_in_kafka=held_in_kafka)))
        archived = needed(history.read_back(storage, stream), horizon, to)
        try:
            return ask(BeginReplay(to, archived, horizon.archived_number, request.cause, held_in_kafka))
        except RefusedError as refusal:
            if refusal.code != "stale" or last:
                raise
    raise AssertionError("the last attempt returns or raises")
