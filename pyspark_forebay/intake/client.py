"""The requests of a query over an intake to the stream's driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from forebay.http.driver_client import DriverClient
from forebay.messages import (
    BlocksAnswer,
    BlocksRequest,
    CloseCursorRequest,
    CursorPlace,
    Done,
    EarliestAnswer,
    EarliestRequest,
    IncarnationSpan,
    IntakeAnswer,
    IntakePartition,
    MoveCursorRequest,
    OpenCursorAnswer,
    OpenCursorRequest,
    RecordedGap,
    SpanAnswer,
    SpanRequest,
    TimedBlock,
    TimedSpan,
    TimesAnswer,
    TimesRequest,
)
from forebay.model.errors import AccessError, ForebayError, RefusedError, UnreachableError, UsageError
from forebay.model.values import Block, TopicPartition
from forebay.security.access import Access
from pyspark_forebay.options.source import SourceOptions

_log = logging.getLogger("forebay.source")

#: timeout of one request; a driver answers after its journal is synced
ANSWER_SECONDS = 20.0
#: pause between two attempts, while the driver is away or another user still has the cursor
PAUSE_SECONDS = 0.5
#: how long a starting query waits until the cursor's previous user, which was killed, loses it
IN_USE_SECONDS = 60.0

Answer = TypeVar("Answer")
#: incarnation and offset
Place = tuple[int, int]
Places = Mapping[TopicPartition, Place]


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Blocks that hold records of the wanted ranges.

    ``copies``: hosts with a cached copy, by block id. ``lost``: why a lost range was accepted, and by whom, by the
    range's label.
    """

    blocks: tuple[Block, ...]
    gaps: tuple[RecordedGap, ...]
    copies: Mapping[str, tuple[str, ...]]
    lost: Mapping[str, str]


class Intake:
    """A client of the driver that leads the stream.

    While no driver answers, each request is retried for ``patience_seconds``.

    Every method raises UnreachableError if no driver answers in time.
    """

    def __init__(self, urls: Sequence[str], access: Access, patience_seconds: float) -> None:
        self._client = DriverClient(urls, timeout_seconds=ANSWER_SECONDS, access=access)
        self._patience_seconds = patience_seconds
        self._closing = threading.Event()

    @classmethod
    def of(cls, options: SourceOptions) -> Intake:
        """Return a client of the driver that ``options`` name, with their credentials and their time limit for an answer."""
        assert options.intake is not None
        return cls(options.intake.urls, options.intake.access, options.poll_timeout_seconds)

    def close(self) -> None:
        self._closing.set()
        self._client.close()

    def describe(self) -> IntakeAnswer:
        """Return what the stream takes in, up to which positions, and how its blocks are read."""
        return self._ask(lambda: self._client.get("/v1/cursors/intake", IntakeAnswer))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        """Return for each of ``partitions`` the place from which on the WAL holds all records."""
        request = EarliestRequest(partitions=tuple(sorted(partitions)))
        if not request.partitions:
            return {}
        answer = self._post("earliest", request, EarliestAnswer)
        return {place.tp: (place.incarnation, place.offset) for place in answer.places}

    def times(self, wanted: Sequence[TimedSpan]) -> tuple[TimedBlock, ...]:
        """Return for each of ``wanted`` the first block that may hold its record, or how far the driver has searched."""
        return self._post("times", TimesRequest(wanted=tuple(wanted)), TimesAnswer).found

    def blocks(self, spans: Sequence[IncarnationSpan]) -> FoundBlocks:
        """Return all blocks that hold records of ``spans``, each once."""
        return self._blocks(spans, None)

    def span(self, request: SpanRequest) -> tuple[SpanAnswer, FoundBlocks]:
        """Return the incarnations of the requested offsets of one partition, and all blocks that hold some of them."""
        answer = self._post("span", request, SpanAnswer)
        return answer, self._blocks(answer.spans, answer.found)

    def _blocks(self, spans: Sequence[IncarnationSpan], first: BlocksAnswer | None) -> FoundBlocks:
        """Ask for the blocks of ``spans`` until the driver has named all. ``first``: an answer that is already there."""
        found: dict[str, Block] = {}
        gaps: dict[RecordedGap, None] = {}
        copies: dict[str, tuple[str, ...]] = {}
        lost: dict[str, str] = {}
        left = tuple(spans)
        while left:
            answer = first or self._post("blocks", BlocksRequest(spans=left), BlocksAnswer)
            first = None
            for block in answer.blocks:
                found.setdefault(block.id, block)
            gaps |= dict.fromkeys(answer.gaps)
            copies |= answer.copies
            lost |= answer.lost
            further = tuple(
                msgspec.structs.replace(span, from_offset=at)
                for span, at in zip(left, answer.reached, strict=True)
                if at < span.until_offset
            )
            if further == left:
                raise UsageError(
                    "the driver's answer about blocks makes no progress; use the same release of Forebay for driver and query"
                )
            left = further
        return FoundBlocks(tuple(found.values()), tuple(gaps), copies, lost)

    def open(self, request: OpenCursorRequest) -> OpenCursorAnswer:
        """Open a cursor, waiting up to 60 s for a user that may have been killed.

        Raises RefusedError if that user is running.
        """
        return self._again(
            lambda: self._post("open", request, OpenCursorAnswer),
            lambda e: isinstance(e, RefusedError) and e.code == "in-use",
            IN_USE_SECONDS,
        )

    def move(self, request: MoveCursorRequest) -> None:
        """Move a cursor. Raises FencedError, RefusedError, UnreachableError."""
        self._post("move", request, Done)

    def send_heartbeat(self, request: MoveCursorRequest) -> None:
        """Show that a cursor's user is running, with one attempt: the next heartbeat follows soon."""
        self._client.post("/v1/cursors/move", request, Done)

    def end(self, request: CloseCursorRequest) -> None:
        """Release a cursor, with one attempt."""
        self._client.post("/v1/cursors/close", request, Done)

    def _post(self, path: str, request: msgspec.Struct, answer: type[Answer]) -> Answer:
        return self._ask(lambda: self._client.post(f"/v1/cursors/{path}", request, answer))

    def _ask(self, ask: Callable[[], Answer]) -> Answer:
        return self._again(
            ask, lambda e: isinstance(e, UnreachableError) and not isinstance(e, AccessError), self._patience_seconds
        )

    def _again(self, ask: Callable[[], Answer], passes: Callable[[BaseException], bool], seconds: float) -> Answer:
        """Repeat ``ask`` for ``seconds`` while it raises an error that ``passes``; then raise that error."""
        try:
            return ask()
        except ForebayError as error:
            if not passes(error) or seconds <= 0:
                raise
            _log.warning("%s: retrying", error)
        import tenacity  # a planner needs it only after an error

        self._pause(PAUSE_SECONDS)
        again = tenacity.Retrying(
            stop=tenacity.stop_after_delay(max(0.0, seconds - PAUSE_SECONDS)),
            wait=tenacity.wait_fixed(PAUSE_SECONDS),
            sleep=self._pause,
            retry=tenacity.retry_if_exception(passes),
            before_sleep=lambda state: _log.warning("%s: retrying", state.outcome and state.outcome.exception()),
            reraise=True,
        )
        found: Answer = again(ask)
        return found

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise UnreachableError("the query is stopping")


def partitions_of(answer: IntakeAnswer) -> dict[TopicPartition, IntakePartition]:
    """Return the partitions of ``answer`` by topic and number."""
    return {partition.tp: partition for partition in answer.partitions}


def place_messages(places: Places) -> tuple[CursorPlace, ...]:
    """Return ``places`` as requests carry them."""
    return tuple(
        CursorPlace(topic=tp.topic, partition=tp.partition, incarnation=incarnation, offset=offset)
        for tp, (incarnation, offset) in sorted(places.items())
    )
