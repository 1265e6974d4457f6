"""Server-sent events: an overview each second, and each event that listeners get, for a bounded number of clients.

While no client listens, an event costs the decision loop one check.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from driver.journal import events as ev
from driver.listeners.derivation import RecordsOf, happened_in, unknown_records
from driver.listeners.events import Happened
from driver.listeners.offsets import BLOCKS_SOON_MAX, OffsetsOf, unknown_offsets, with_offsets
from driver.listeners.sizes import event_bytes
from forebay import messages as m
from forebay.model.errors import AccessError, ForebayError, TurnedAwayError

log = logging.getLogger(__name__)

#: maximum number of clients
CLIENTS_MAX = 20
#: maximum number of frames that wait for one client, and of their bytes; a client that is slower is dropped
FRAMES_MAX, BYTES_MAX = 10_000, 16 << 20
#: maximum number of groups of events that wait for the serving loop, and of their bytes, about; beyond it, clients are dropped
WAITING_MAX, WAITING_BYTES_MAX = 10_000, 16 << 20
#: pause between two overviews
OVERVIEW_SECONDS = 1.0

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


def frame(kind: str, data: bytes, number: int | None = None) -> bytes:
    """Return one event as bytes of ``text/event-stream``. ``data``: JSON, which has no line break."""
    head = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (head, kind.encode(), data)


class EventClient:
    """One client: the frames that wait for it. For the serving loop only. ``authorize`` raises AccessError if the client may not
    listen any more."""

    def __init__(self, authorize: Callable[[], object] = lambda: None) -> None:
        self._authorize = authorize
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._ended = False
        self._overview = b""

    def put(self, data: bytes) -> None:
        """Queue a frame. A client with too many frames or bytes waiting is dropped."""
        if self._ended:
            return
        if len(self._frames) >= FRAMES_MAX or self._bytes + len(data) > BYTES_MAX:
            self.end(frame("dropped", b'{"reason": "the client is too slow"}'))
            return
        self._frames.append(data)
        self._bytes += len(data)
        self._arrived.set()

    def show(self, overview: bytes) -> None:
        """Send ``overview`` next; one that still waits is replaced."""
        if not self._ended:
            self._overview = overview
            self._arrived.set()

    def check(self) -> None:
        """End the client if its token is not valid any more."""
        try:
            self._authorize()
        except AccessError:
            self.end(frame("end", b'{"reason": "the token is not valid any more"}'))

    def end(self, last: bytes) -> None:
        """Send ``last`` in place of all frames that wait, and end."""
        self._ended = True
        self._overview = b""
        self._frames = deque([last])
        self._arrived.set()

    async def next(self) -> tuple[bytes, bool]:
        """Wait for frames; return them, and whether more may follow."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._frames = b"".join((*self._frames, self._overview)), deque()
        self._bytes, self._overview = 0, b""
        return taken, not self._ended


class EventHub:
    """All clients of a driver, and the events for them.

    ``overview`` returns the present overview; it may take a while, and raises ForebayError. :meth:`note` and :meth:`tell` may be
    called from any thread and never block; all else belongs to the serving loop.
    """

    def __init__(self, overview: Callable[[], Awaitable[m.OverviewAnswer]]) -> None:
        self._overview = overview
        self._clients: set[EventClient] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # set while a client listens
        self._waiting: deque[tuple[int, Sequence[ev.Event], Sequence[Happened]]] = deque()
        self._waiting_bytes = 0
        self._overflown = False
        self._numbers = itertools.count(1)
        self._ticking: asyncio.Task[None] | None = None
        #: returns how many records an unfinished batch has; None: unknown
        self.records_of: RecordsOf = unknown_records
        #: returns the offsets of submitted batches
        self.offsets_of: OffsetsOf = unknown_offsets
        self._closed = self._failed = False

    # ---- any thread --------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether a client listens."""
        return self._loop is not None

    def note(self, events: Sequence[ev.Event], now_ms: int) -> None:
        """Pass on what follows from events of the journal. Called in the decision loop."""
        if self._loop is not None:
            self._enqueue(now_ms, events, ())

    def tell(self, happened: Sequence[Happened]) -> None:
        """Pass on events for listeners."""
        if self._loop is not None:
            self._enqueue(0, (), happened)

    def close(self) -> None:
        """End all clients, and accept no more."""
        with self._lock:
            self._closed, loop = True, self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the serving loop has ended
                loop.call_soon_threadsafe(self._end_all, frame("end", b'{"reason": "the driver is stopping"}'))

    def _enqueue(self, now_ms: int, events: Sequence[ev.Event], happened: Sequence[Happened]) -> None:
        size = sum(map(event_bytes, events)) + sum(map(event_bytes, happened))
        with self._lock:
            loop = self._loop
            if loop is None or self._overflown:
                return
            first = not self._waiting
            self._overflown = len(self._waiting) >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX
            if not self._overflown:
                self._waiting.append((now_ms, events, happened))
                self._waiting_bytes += size
        if first:
            with contextlib.suppress(RuntimeError):  # the serving loop has ended: no client waits
                loop.call_soon_threadsafe(self._hand_out)

    # ---- the serving loop --------------------------------------------------------------------------------------------

    async def serve(self, receive: Receive, send: Send, authorize: Callable[[], object] = lambda: None) -> None:
        """Send events until the client disconnects or is dropped, the driver stops, or ``authorize`` raises AccessError.

        ``authorize`` is called before each overview. Raises TurnedAwayError before the answer begins if there are too many
        clients.
        """
        client = self._join(authorize)
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if overview := await self._present():
                client.show(overview)
            more = True
            while more:
                frames = asyncio.ensure_future(client.next())
                await asyncio.wait((frames, gone), return_when=asyncio.FIRST_COMPLETED)
                if not frames.done():
                    frames.cancel()
                    return
                data, more = frames.result()
                await send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            gone.cancel()
            self._leave(client)

    def _join(self, authorize: Callable[[], object]) -> EventClient:
        with self._lock:
            if self._closed or len(self._clients) >= CLIENTS_MAX:
                raise TurnedAwayError(
                    "the driver is stopping" if self._closed else f"{CLIENTS_MAX} clients listen to events already"
                )
            client = EventClient(authorize)
            self._clients.add(client)
            self._loop = asyncio.get_running_loop()
        if self._ticking is None:
            self._ticking = asyncio.ensure_future(self._tick())
        return client

    def _leave(self, client: EventClient) -> None:
        with self._lock:
            self._clients.discard(client)
            if self._clients:
                return
            self._loop = None
            self._waiting.clear()
            self._waiting_bytes = 0
            self._overflown = False
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def _hand_out(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            self._waiting_bytes = 0
            overflown, self._overflown = self._overflown, False
        if overflown:
            self._end_all(frame("dropped", b'{"reason": "too many events at the same time"}'))
        for now_ms, events, happened in waiting:
            derived = itertools.chain.from_iterable(self._derived(event, now_ms) for event in events)
            for one in itertools.chain(derived, happened):
                data = frame(_kind(one), msgspec.json.encode(one), next(self._numbers))
                for client in self._clients:
                    client.put(data)

    def _derived(self, event: ev.Event, now_ms: int) -> Iterator[Happened]:
        """Yield what follows from an event of the journal. The offsets of a large batch are left out: clients wait for this."""
        offsets = {
            batch_id: found for batch_id, found in self.offsets_of(event).items() if found.items <= BLOCKS_SOON_MAX
        }
        yield from (with_offsets(one, offsets) for one in happened_in(event, now_ms, self.records_of))

    def _end_all(self, last: bytes) -> None:
        for client in self._clients:
            client.end(last)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(OVERVIEW_SECONDS)
            for client in self._clients:
                client.check()
            if overview := await self._present():
                for client in self._clients:
                    client.show(overview)

    async def _present(self) -> bytes:
        """Return the frame of the present overview; b"" without one. Of unexpected errors in a row, the first is logged."""
        try:
            data = frame("overview", msgspec.json.encode(await self._overview()))
        except ForebayError:  # the decision loop does not answer, so nothing is new
            return b""
        except Exception:
            if not self._failed:
                log.exception("cannot make the overview for the clients of events")
            self._failed = True
            return b""
        self._failed = False
        return data


def _kind(happened: Happened) -> str:
    return str(type(happened).__struct_config__.tag)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
