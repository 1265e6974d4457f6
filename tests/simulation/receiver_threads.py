"""What the threads of a receiver wait for, under the scheduler: conditions, queues, futures, the driver's answers.

A thread pauses as a step that the scheduler chooses, or as a :class:`Wait`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from receiver.stores.store import BlockWrite, WriteQueue
from tests.simulation.shells import SteppedEvent, SteppedThread, pause


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Wait:
    """``over``: whether the thread goes on by itself. ``steps``: the steps that end the wait before, as a time-out does."""

    over: Callable[[], object] = never
    steps: Callable[[], Iterable[str]] = tuple


@dataclass(frozen=True, slots=True)
class Sent:
    """A request to the driver, whose answer the thread awaits."""

    kind: str
    message: msgspec.Struct


#: a wait that only the process ends
FOR_EVER = Wait()


class Condition:
    """A condition between threads of one receiver, whose waits the predicate ends.

    ``late``: the step of a time-out. ``step``: begins what the next wait awaits; "": that begins by itself.
    """

    def __init__(self, late: str = "") -> None:
        self._late = (late,) if late else ()
        self.step = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        """Waits read their predicates again after every step."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        if step := self.step:
            pause(cast(Any, Wait(steps=lambda: (step,) if predicate() else ())))
        elif not predicate():
            pause(cast(Any, Wait(predicate, lambda: self._late)))
        return predicate()

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("a wait without a predicate has a condition of its own")


class Inbox:
    """A queue whose reader goes on as soon as there is an item."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._filled = Wait(self._items.__len__)

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        if not self._items:
            pause(cast(Any, self._filled))
        return self._items.popleft()


class Closing(SteppedEvent):
    """The end of a store's threads, which a simulated process does not see: its greenlets are dropped."""

    def set(self) -> None:
        pass


class Thread(SteppedThread):
    """A thread that the process runs in its place, and never joins."""

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class Result:
    """The result of a call in another thread."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._error: MemoryError | None = None

    def done(self) -> bool:
        return bool(self._results) or self._error is not None

    def set_result(self, value: Any) -> None:
        self._results.append(value)

    def set_exception(self, error: MemoryError) -> None:
        self._error = error

    def result(self) -> Any:
        if not self.done():
            pause(cast(Any, Wait(self.done)))
        if self._error is not None:
            raise self._error
        return self._results[0]


class Executor:
    """A pool of one thread, whose loop is :meth:`run`. ``step``: begins each call; "": it begins by itself."""

    def __init__(self, step: str = "") -> None:
        self._calls: deque[tuple[Result, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._wait = Wait(steps=lambda: (step,) if self._calls else ()) if step else Wait(self._calls.__len__)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Result:
        result = Result()
        self._calls.append((result, call, arguments))
        return result

    def run(self) -> None:
        while True:
            pause(cast(Any, self._wait))
            result, call, arguments = self._calls.popleft()
            try:
                result.set_result(call(*arguments))
            except MemoryError as error:
                result.set_exception(error)

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        pass


class CheckedWriteQueue(WriteQueue):
    """Tells ``put_one`` each block that is to be written. The step ``append`` takes all that wait."""

    def __init__(self, bytes_max: int, clock: Any, put_one: Callable[[BlockWrite], None]) -> None:
        super().__init__(bytes_max, clock)
        self._put_one = put_one
        self._changed = cast(Any, Condition())

    def put(self, write: BlockWrite) -> None:
        self._put_one(write)
        cast(Any, self._changed).step = ""
        super().put(write)

    def take(self, not_before: float) -> list[BlockWrite]:
        cast(Any, self._changed).step = "append"
        return super().take(not_before)
