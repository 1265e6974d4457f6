"""The receiver's line to the driver: one thread per line sends requests in order and tells what became of each."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forebay import messages
from forebay.http.driver_client import DriverClient
from forebay.model.errors import FencedError, ForebayError, UsageError
from forebay.process import failpoints
from receiver import actions as act
from receiver import inputs as inp

_log = logging.getLogger("forebay.receiver")


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    answer: type[Any]
    tell: Callable[[int, Any], inp.Input]


ROUTES: dict[type[act.DriverAction], _Route] = {
    act.Register: _Route(
        "/v1/receivers/register",
        messages.RegisterAnswer,
        lambda request, answer: inp.Registered(
            request, answer.epoch, answer.driver_epoch, answer.timeline, answer.topics
        ),
    ),
    act.Lookup: _Route(
        "/v1/partitions/look",
        messages.LookupAnswer,
        lambda request, answer: inp.LookupAnswered(request, answer.partitions),
    ),
    act.Claim: _Route(
        "/v1/partitions/claim",
        messages.ClaimAnswer,
        lambda request, answer: inp.Claimed(request, answer.claims),
    ),
    act.Release: _Route(
        "/v1/partitions/release",
        messages.Done,
        lambda request, answer: inp.Released(request),
    ),
    act.Report: _Route(
        "/v1/blocks/report",
        messages.ReportAnswer,
        lambda request, answer: inp.ReportAnswered(request, answer.results),
    ),
    act.SendFault: _Route(
        "/v1/partitions/trouble",
        messages.FaultAnswer,
        lambda request, answer: inp.FaultAnswered(request, answer.proceed, answer.message),
    ),
    act.Heartbeat: _Route(
        "/v1/receivers/heartbeat",
        messages.HeartbeatAnswer,
        lambda request, answer: inp.HeartbeatAnswered(
            request, answer.driver_epoch, answer.commands, answer.replica_host, answer.topics
        ),
    ),
}


class DriverLine:
    """Sends one request at a time; repeats nothing, since the machine decides what is sent again.

    ``tell`` gets the answer as an input, or DriverFailed, Fenced, Misused (a registration refused as wrong use), or Broken.
    """

    def __init__(self, name: str, client: DriverClient, tell: Callable[[inp.Input], None]) -> None:
        self._client = client
        self._tell = tell
        self._requests: queue.SimpleQueue[act.DriverAction | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"driver-{name}", daemon=True)

    def __enter__(self) -> DriverLine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for an exchange in flight: the process may be ending because there is no answer."""
        self._requests.put(None)

    def send(self, action: act.DriverAction) -> None:
        self._requests.put(action)

    def _run(self) -> None:
        while (action := self._requests.get()) is not None:
            try:
                told = self._exchange(action)
            except Exception as error:  # no answer would ever be told again
                _log.exception("the line to the driver broke")
                told = inp.Broken(f"the line to the driver broke: {error!r}")
            self._tell(told)

    def _exchange(self, action: act.DriverAction) -> inp.Input:
        route = ROUTES[type(action)]
        try:
            if isinstance(action, act.Report) and failpoints.hit("receiver.before-report"):
                return inp.DriverFailed(action.request, "the report was lost (failpoint)")
            answer = self._client.post(route.path, action.message, route.answer)
            if isinstance(action, act.Report) and failpoints.hit("receiver.after-report"):
                return inp.DriverFailed(action.request, "the answer was lost (failpoint)")
        except FencedError as error:
            return inp.Fenced(str(error))
        except UsageError as error:
            if isinstance(action, act.Register):
                return inp.Misused(str(error))
            return inp.DriverFailed(action.request, f"refused as wrong: {error}")
        except ForebayError as error:
            return inp.DriverFailed(action.request, str(error))
        except Exception as error:  # an answer that is none, a failpoint's error: told, and tried again by the machine
            _log.exception("asking the driver failed")
            return inp.DriverFailed(action.request, repr(error))
        return route.tell(action.request, answer)
