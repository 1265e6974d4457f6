"""Questions to the broker that must not hold up polling: topic ids and watermarks, from a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from forebay.model.errors import ForebayError
from receiver import actions as act
from receiver import inputs as inp
from receiver.source import Source

_log = logging.getLogger("forebay.receiver")


class BrokerLine:
    """Answers CheckTopicIds and Inspect in order. ``tell`` gets TopicIdsRead, Inspected or BrokerFailed."""

    def __init__(self, source: Source, timeout_seconds: float, tell: Callable[[inp.Input], None]) -> None:
        self._source = source
        self._timeout_seconds = timeout_seconds
        self._tell = tell
        self._questions: queue.SimpleQueue[act.BrokerAction | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    def __enter__(self) -> BrokerLine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the question in hand, so that nobody asks a closed source; each has a time limit."""
        self._questions.put(None)
        self._thread.join(2 * self._timeout_seconds)

    def send(self, action: act.BrokerAction) -> None:
        self._questions.put(action)

    def _run(self) -> None:
        while (action := self._questions.get()) is not None:
            self._tell(self._answer(action))

    def _answer(self, action: act.BrokerAction) -> inp.Input:
        try:
            if isinstance(action, act.CheckTopicIds):
                return inp.TopicIdsRead(action.request, self._source.topic_ids(action.topics))
            topic = action.tp.topic
            topic_id = self._source.topic_ids([topic]).get(topic, "")
            low, high = self._source.watermarks(action.tp, self._timeout_seconds)
            if self._source.topic_ids([topic]).get(topic, "") != topic_id:
                # the watermarks of one topic under the id of another would skip what the new one holds (INV-5)
                return inp.BrokerFailed(action.request, f"topic {topic} was created again while it was looked at")
            return inp.Inspected(action.request, low, high, topic_id)
        except ForebayError as error:
            return inp.BrokerFailed(action.request, str(error))
        except Exception as error:  # told, and tried again by the machine
            _log.exception("asking the broker failed")
            return inp.BrokerFailed(action.request, repr(error))
