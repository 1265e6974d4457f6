"""The routes of observers: GET requests for people, the page, commands and monitoring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from litestar import Request, Response, get
from litestar.config.compression import CompressionConfig
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import DefineMiddleware
from litestar.middleware.compression import CompressionMiddleware
from litestar.params import PathParameter, QueryParameter
from litestar.response.base import ASGIResponse

from driver.http.batches import BatchQuery
from driver.http.observation import answers
from driver.http.observation.blocks import BlockQuery
from driver.http.observation.events import EventHub
from driver.http.observation.lists import LIMIT, LIMIT_MAX, Query
from driver.http.observation.observer import Observer
from driver.http.observation.records import RECORDS, RECORDS_MAX, VALUE_BYTES, VALUE_BYTES_MAX
from driver.http.observation.series import POINTS_MAX
from forebay import messages as m
from forebay.http.application import caller, needs
from forebay.model.bounds import INT32_MAX, NUMBER_MAX, OFFSET_MAX, TEXT_LENGTH_MAX, TOPIC_LENGTH_MAX
from forebay.model.errors import TurnedAwayError
from forebay.security.access import Guard
from forebay.security.roles import ROLES

Answer = TypeVar("Answer")

WATCHER, QUERY = needs("reader", "operator"), needs("query", "operator")

#: compresses long answers, which pages ask for again and again. A fast level: 1,000 rows take some milliseconds.
COMPRESSED = [
    DefineMiddleware(
        CompressionMiddleware,
        config=CompressionConfig(backend="gzip", minimum_size=2_000, gzip_compress_level=1),
    )
]
#: maximum number of requests that wait for a store, for each kind of them
WAITING_MAX = 10

Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Maximum number of entries")]
After = Annotated[str, QueryParameter(max_length=TEXT_LENGTH_MAX, description="`next` of the page before")]
State = Annotated[str, QueryParameter(name="state", max_length=32, description="Only entries in this state")]
PartOfName = Annotated[
    str, QueryParameter(max_length=TOPIC_LENGTH_MAX, description="Part of the name; case is ignored")
]
TopicName = Annotated[str, QueryParameter(max_length=TOPIC_LENGTH_MAX, description="Only blocks with this topic")]
PartitionOrNone = Annotated[
    int | None, QueryParameter(ge=0, le=INT32_MAX, description="Only blocks with this partition")
]
OffsetOrNone = Annotated[int | None, QueryParameter(ge=0, le=OFFSET_MAX, description="Only blocks with this offset")]
BatchOrZero = Annotated[
    int,
    QueryParameter(
        ge=0, le=NUMBER_MAX, description="Only the first 1,000 blocks of the batch with this id or number; 0: all"
    ),
]
SinceMs = Annotated[int, QueryParameter(ge=0, le=NUMBER_MAX, description="Milliseconds since 1970 UTC")]
Points = Annotated[int, QueryParameter(ge=1, le=POINTS_MAX, description="Maximum number of points; more are joined")]
Failed = Annotated[bool, QueryParameter(description="Only batches with a failed attempt")]
BatchId = Annotated[int, PathParameter(ge=0, le=NUMBER_MAX, description="Id or number of a batch")]
BlockId = Annotated[str, PathParameter(max_length=TEXT_LENGTH_MAX, description="Id of a block")]
First = Annotated[
    int, QueryParameter(name="from", ge=0, le=INT32_MAX, description="Number of the first record in the block, from 0")
]
RecordLimit = Annotated[int, QueryParameter(ge=1, le=RECORDS_MAX, description="Maximum number of records")]
BytesMax = Annotated[
    int, QueryParameter(ge=0, le=VALUE_BYTES_MAX, description="Bytes after which a key, a value or headers are cut off")
]


def _query(limit: Limit = LIMIT, after: After = "", in_state: State = "", text: PartOfName = "") -> Query:
    return Query(limit=limit, after=after, state=in_state, text=text)


Wanted = NamedDependency[Query]
LISTED = {"wanted": Provide(_query, sync_to_thread=False)}


def _named(limit: Limit = LIMIT, after: After = "", text: PartOfName = "") -> Query:
    return Query(limit=limit, after=after, text=text)


#: of a list whose entries have no state
NAMED = {"wanted": Provide(_named, sync_to_thread=False)}


def observer_routes(observer: Observer, guard: Guard) -> list[HTTPRouteHandler]:
    """Return the routes. ``guard``: of the service."""
    history = _Few(2)
    return [
        *_glance_routes(observer, lambda: guard.guarded),
        *_list_routes(observer),
        *_batch_routes(observer, history),
        *_block_routes(observer, history),
        *_storage_routes(observer),
        _events_route(observer.hub, guard),
    ]


class _Few:
    """Calls functions that may wait for a store in other threads, ``running`` at the same time. So a store that does not answer
    holds up no other route."""

    def __init__(self, running: int) -> None:
        self._running = asyncio.Semaphore(running)
        self._waiting = 0

    async def call(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Return what ``function`` returns. Raises TurnedAwayError if ``WAITING_MAX`` calls wait."""
        if self._waiting >= WAITING_MAX:
            raise TurnedAwayError(f"{WAITING_MAX} requests already wait for the store; try again later")
        self._waiting += 1
        try:
            async with self._running:
                return await _away(function, *arguments)
        finally:
            self._waiting -= 1


async def _away(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call ``function`` in another thread: it may wait for the decision loop or a store."""
    return await asyncio.to_thread(function, *arguments)


def _watched(path: str, summary: str, **more: Any) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Return the decorator of a GET route for everyone who may watch. ``more``: as the framework's ``get`` takes it."""
    return get(path, summary=summary, tags=["people"], opt=WATCHER, **more)


def _glance_routes(observer: Observer, is_guarded: Callable[[], bool]) -> list[HTTPRouteHandler]:
    @_watched("/v1/overview", "The stream at a glance; a standby names the leader")
    async def overview() -> m.OverviewAnswer:
        return await _away(observer.overview)

    @_watched("/v1/series", "Rates, lag and delays of the last day", middleware=COMPRESSED)
    async def series(since_ms: SinceMs = 0, points_max: Points = 360) -> m.SeriesAnswer:
        return await _away(observer.series, since_ms, points_max)

    @get("/v1/caller", summary="The roles of the token that was sent", tags=["people"], opt=needs(*ROLES))
    async def get_caller() -> m.CallerAnswer:
        own = caller.get()
        return m.CallerAnswer(roles=tuple(role for role in ROLES if own.has([role])), guarded=is_guarded())

    return [overview, series, get_caller]


def _list_routes(observer: Observer) -> list[HTTPRouteHandler]:
    @_watched(
        "/v1/partitions", "Partitions, with positions, watermarks and lag", dependencies=LISTED, middleware=COMPRESSED
    )
    async def partitions(wanted: Wanted) -> m.PartitionsAnswer:
        return await _away(lambda: answers.partitions(observer.snapshot(), wanted))

    @_watched("/v1/receivers", "Receivers, as in their last heartbeats", dependencies=LISTED, middleware=COMPRESSED)
    async def receivers(wanted: Wanted) -> m.ReceiversAnswer:
        return await _away(lambda: answers.receivers(observer.snapshot(), wanted))

    @_watched("/v1/hosts", "Hosts with agents, as in their last heartbeats", dependencies=LISTED, middleware=COMPRESSED)
    async def hosts(wanted: Wanted) -> m.HostsAnswer:
        return await _away(lambda: answers.hosts(observer.snapshot(), wanted))

    @_watched("/v1/cursors", "Cursors of queries over the intake", dependencies=LISTED, middleware=COMPRESSED)
    async def cursors(wanted: Wanted) -> m.CursorsAnswer:
        return await _away(lambda: answers.cursors(observer.snapshot(), wanted, observer.held_for_cursors()))

    @_watched("/v1/direct", "Direct streams that read through the intake")
    async def direct() -> m.DirectAnswer:
        return await _away(lambda: answers.direct(observer.snapshot()))

    @_watched("/v1/listeners", "Listeners, with the events that they got and lost")
    async def listeners() -> m.ListenersAnswer:
        return await _away(observer.listeners)

    return [partitions, receivers, hosts, cursors, direct, listeners]


def _batch_routes(observer: Observer, history: _Few) -> list[HTTPRouteHandler]:
    @_watched("/v1/batches", "Unfinished and newest completed batches, newest first", middleware=COMPRESSED)
    async def batches(
        limit: Limit = LIMIT,
        after: After = "",
        in_state: State = "",
        text: PartOfName = "",
        failed: Failed = False,
        since_ms: SinceMs = 0,
    ) -> m.BatchesAnswer:
        query = BatchQuery(limit=limit, after=after, state=in_state, text=text, failed=failed, since_ms=since_ms)
        return await _away(observer.batches, query)

    @_watched("/v1/batches/{batch_id:int}", "One batch, by its id or number")
    async def batch(batch_id: BatchId) -> m.BatchDetail:
        return await history.call(observer.batch, batch_id)

    return [batches, batch]


def _block_routes(observer: Observer, history: _Few) -> list[HTTPRouteHandler]:
    reading = _Few(1)  # it takes memory

    @_watched("/v1/blocks", "Blocks that the journal names, newest first", middleware=COMPRESSED)
    async def blocks(
        limit: Limit = LIMIT,
        after: After = "",
        in_state: State = "",
        text: PartOfName = "",
        batch: BatchOrZero = 0,
        topic: TopicName = "",
        partition: PartitionOrNone = None,
        offset: OffsetOrNone = None,
    ) -> m.BlockListAnswer:
        query = BlockQuery(
            limit=limit,
            after=after,
            state=in_state,
            text=text,
            batch_id=batch,
            topic=topic,
            partition=partition,
            offset=offset,
        )
        return await (history.call if batch else _away)(observer.blocks, query)

    @_watched("/v1/blocks/{block_id:str}", "One block, with its ranges")
    async def block(block_id: BlockId) -> m.BlockEntry:
        return await _away(observer.block, block_id)

    @get("/v1/blocks/{block_id:str}/records", summary="Some records of a block", tags=["queries"], opt=QUERY)
    async def records(
        block_id: BlockId, first: First = 0, limit: RecordLimit = RECORDS, bytes_max: BytesMax = VALUE_BYTES
    ) -> m.RecordsAnswer:
        return await reading.call(observer.records, block_id, first, limit, bytes_max)

    return [blocks, block, records]


def _storage_routes(observer: Observer) -> list[HTTPRouteHandler]:
    files, manifests = _Few(1), _Few(1)

    @_watched("/v1/states", "Keyed states, with their keys, bytes and versions", dependencies=NAMED)
    async def states(wanted: Wanted) -> m.StatesAnswer:
        return await manifests.call(observer.states, wanted)

    @_watched("/v1/wal", "The WAL's segments, retention, and what waits for them")
    async def wal() -> m.WalAnswer:
        return await _away(observer.wal)

    @_watched("/v1/journal", "The journal's segments, its snapshot and its lease")
    async def journal() -> m.JournalAnswer:
        return await files.call(observer.journal)

    @_watched("/v1/settings", "Settings in force and their origin, without secrets")
    async def settings() -> m.SettingsAnswer:
        return await _away(observer.settings)

    return [states, wal, journal, settings]


class _EventStream(Response[None]):
    """The answer that the hub sends until the client goes."""

    def __init__(self, hub: EventHub, authorize: Callable[[], object]) -> None:
        super().__init__(None, media_type="text/event-stream")
        self._hub = hub
        self._authorize = authorize

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        return _Events(self._hub, self._authorize)


class _Events(ASGIResponse):
    __slots__ = ("_authorize", "_hub")

    def __init__(self, hub: EventHub, authorize: Callable[[], object]) -> None:
        super().__init__(media_type="text/event-stream")
        self._hub = hub
        self._authorize = authorize

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._hub.serve(receive, send, self._authorize)


def _events_route(hub: EventHub, guard: Guard) -> HTTPRouteHandler:
    @_watched(
        "/v1/events",
        "Server-sent events: an overview each second, and each event that listeners get",
        media_type="text/event-stream",
    )
    async def events(request: Request[Any, Any, Any]) -> Response[None]:
        authorization = request.headers.get("authorization")
        return _EventStream(hub, lambda: guard.authorize(authorization, WATCHER["roles"]))

    return events
