"""The start of a replay: reads the history in another thread; then the decision loop decides (``driver.decisions.replay``)."""

from __future__ import annotations

from dataclasses import dataclass

from driver.decisions.replay import HeldInKafka, Horizon, RewindTo, needed, no_spans
from driver.journal import history
from driver.journal.state import State
from driver.tracker.requests import Ask, BeginReplay, Read
from forebay.messages import OperatorAnswer, ReplayRequest
from forebay.model.errors import RefusedError, UsageError
from wal.storage import Storage

#: maximum number of attempts; a further one is made if batches moved to the history while it was read
REPLAY_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class ReadHorizon(Read[Horizon]):
    """Reads how far back a replay can go. ``held_in_kafka``: as in :class:`BeginReplay`. ``window_ms``: the longest window by
    time."""

    held_in_kafka: HeldInKafka
    window_ms: int = 0

    def read(self, state: State) -> Horizon:
        return Horizon.of(state, held_in_kafka=self.held_in_kafka, window_ms=self.window_ms)


def begin_replay(
    ask: Ask,
    storage: Storage,
    stream: str,
    request: ReplayRequest,
    held_in_kafka: HeldInKafka = no_spans,
    window_ms: int = 0,
) -> OperatorAnswer:
    """Begin the replay that ``request`` names, and return the tracker's answer.

    Reads no more of the history in ``storage`` than the replay may need. ``ask``: sends a request to the decision loop.
    ``window_ms``: the longest window by time. Raises RefusedError, UsageError, CorruptionError, NewerVersionError, StoreError.
    """
    if bool(request.batch) == bool(request.time_ms):
        raise UsageError("a replay begins at a batch or at a time: name one of the two")
    to = RewindTo(request.batch, request.time_ms)
    for last in (*[False] * (REPLAY_ATTEMPTS - 1), True):
        horizon = ask(ReadHorizon(held_in_kafka, window_ms))
        archived = needed(history.read_back(storage, stream), horizon, to)
        try:
            return ask(BeginReplay(to, archived, horizon.archived_number, request.cause, held_in_kafka))
        except RefusedError as refusal:
            if refusal.code != "stale" or last:
                raise
    raise AssertionError("the last attempt returns or raises")
