"""Requests to the broker that must not delay polling, in a thread of their own: topic ids and watermarks."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from forebay.model.errors import ForebayError
from receiver import actions as act
from receiver import inputs as inp
from receiver.sources.source import Source

_log = logging.getLogger("forebay.receiver")


class BrokerChannel:
    """Performs CheckTopicIds and Inspect in order. ``tell`` gets TopicIdsRead, Inspected or BrokerFailed."""

    def __init__(self, source: Source, timeout_seconds: float, tell: Callable[[inp.Input], None]) -> None:
        self._source = source
        self._timeout_seconds = timeout_seconds
        self._tell = tell
        self._requests: queue.SimpleQueue[act.BrokerAction | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    def __enter__(self) -> BrokerChannel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the request in progress, which has a time limit: the source is closed next and must not be in use."""
        self._requests.put(None)
        self._thread.join(2 * self._timeout_seconds)

    def send(self, action: act.BrokerAction) -> None:
        """Queue a request and return."""
        self._requests.put(action)

    def _run(self) -> None:
        while (action := self._requests.get()) is not None:
            self._tell(self._answer(action))

    def _answer(self, action: act.BrokerAction) -> inp.Input:
        try:
            if isinstance(action, act.CheckTopicIds):
                return inp.TopicIdsRead(action.request, self._source.topic_ids(action.topics))
            topic = action.tp.topic
            topic_id = self._source.topic_ids([topic]).get(topic, "")
            low, high = self._source.watermarks(action.tp, self._timeout_seconds)
            if self._source.topic_ids([topic]).get(topic, "") != topic_id:
                # the watermarks of one topic under the id of another would skip records of the new one (INV-5)
                return inp.BrokerFailed(
                    action.request, f"topic {topic} was deleted and created again during the request"
                )
            return inp.Inspected(action.request, low, high, topic_id)
        except ForebayError as error:
            return inp.BrokerFailed(action.request, str(error))
        except Exception as error:  # the machine retries
            _log.exception("a request to the broker failed")
            return inp.BrokerFailed(action.request, repr(error))
