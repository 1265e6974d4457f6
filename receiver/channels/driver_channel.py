"""Requests to the driver: each channel has one thread, sends its requests in order and passes each outcome to the machine."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from typing_extensions import assert_never

from forebay import messages
from forebay.http.driver_client import DriverClient
from forebay.model.errors import FencedError, ForebayError, UsageError
from forebay.process import failpoints
from receiver import actions as act
from receiver import inputs as inp

_log = logging.getLogger("forebay.receiver")

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Post(Protocol):
    """Sends ``body`` to a path of the driver's API and returns the decoded answer."""

    def __call__(self, path: str, body: msgspec.Struct, answer: type[Answer], /) -> Answer: ...


def ask(action: act.DriverAction, post: Post) -> inp.DriverAnswer:
    """Send the request of ``action`` by one call of ``post`` and return the driver's answer as an input of the machine."""
    match action:
        case act.Register(request, message):
            registered = post("/v1/receivers/register", message, messages.RegisterAnswer)
            return inp.Registered(
                request, registered.epoch, registered.driver_epoch, registered.timeline, registered.topics
            )
        case act.Lookup(request, message):
            return inp.LookupAnswered(request, post("/v1/partitions/look", message, messages.LookupAnswer).partitions)
        case act.Claim(request, message):
            return inp.Claimed(request, post("/v1/partitions/claim", message, messages.ClaimAnswer).claims)
        case act.Release(request, message):
            post("/v1/partitions/release", message, messages.Done)
            return inp.Released(request)
        case act.Report(request, message):
            reported = post("/v1/blocks/report", message, messages.ReportAnswer)
            return inp.ReportAnswered(request, reported.results, reported.next_batch_ms, reported.every_ms)
        case act.SendFault(request, message):
            decided = post("/v1/partitions/trouble", message, messages.FaultAnswer)
            return inp.FaultAnswered(request, decided.proceed, decided.message)
        case act.Heartbeat(request, message):
            beat = post("/v1/receivers/heartbeat", message, messages.HeartbeatAnswer)
            return inp.HeartbeatAnswered(request, beat.driver_epoch, beat.commands, beat.replica_host, beat.topics)
        case _:
            assert_never(action)


class _NotAnswered(Exception):
    """The request got no usable answer. ``outcome``: the input that the machine gets instead."""

    def __init__(self, outcome: inp.Input) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class DriverChannel:
    """Sends requests to the driver in a thread, one at a time. It repeats none: the machine decides which to send again.

    ``tell`` is called once for each request with an input of the machine: the answer, or DriverFailed, Fenced, Misused (the
    driver refused the registration as wrong use) or ThreadFailure.
    """

    def __init__(self, name: str, client: DriverClient, tell: Callable[[inp.Input], None]) -> None:
        self._client = client
        self._tell = tell
        self._requests: queue.SimpleQueue[act.DriverAction | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"driver-{name}", daemon=True)

    def __enter__(self) -> DriverChannel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread after the requests that are queued. Does not wait for it: the driver may not be answering."""
        self._requests.put(None)

    def send(self, action: act.DriverAction) -> None:
        """Queue a request and return."""
        self._requests.put(action)

    def _run(self) -> None:
        while (action := self._requests.get()) is not None:
            try:
                outcome = self._exchange(action)
            except Exception as error:  # the thread would end, and no later request would get an outcome
                _log.exception("the thread that sends requests to the driver failed")
                outcome = inp.ThreadFailure(f"the thread that sends requests to the driver failed: {error!r}")
            self._tell(outcome)

    def _exchange(self, action: act.DriverAction) -> inp.Input:
        def post(path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
            return self._post(action, path, body, answer)

        try:
            return ask(action, post)
        except _NotAnswered as failure:
            return failure.outcome

    def _post(self, action: act.DriverAction, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        """Raises _NotAnswered for every error."""
        try:
            if isinstance(action, act.Report) and failpoints.hit("receiver.before-report"):
                raise _NotAnswered(inp.DriverFailed(action.request, "the report was lost (failpoint)"))
            answered = self._client.post(path, body, answer)
            if isinstance(action, act.Report) and failpoints.hit("receiver.after-report"):
                raise _NotAnswered(inp.DriverFailed(action.request, "the answer was lost (failpoint)"))
        except _NotAnswered:
            raise
        except FencedError as error:
            raise _NotAnswered(inp.Fenced(str(error))) from error
        except UsageError as error:
            if isinstance(action, act.Register):
                raise _NotAnswered(inp.Misused(str(error))) from error
            raise _NotAnswered(inp.DriverFailed(action.request, f"the driver refused the request: {error}")) from error
        except ForebayError as error:
            raise _NotAnswered(inp.DriverFailed(action.request, str(error))) from error
        except Exception as error:  # an answer that can't be decoded, a failpoint's error: the machine retries
            _log.exception("a request to the driver failed: path %s", path)
            raise _NotAnswered(inp.DriverFailed(action.request, repr(error))) from error
        return answered
