"""What a query over an intake asks the stream's driver, and how it keeps its cursor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import tenacity

from forebay.http.driver_client import DriverClient
from forebay.kafka.client.admin import Committed, KafkaAdmin
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
from forebay.model.errors import AccessError, FencedError, ForebayError, RefusedError, UnreachableError, UsageError
from forebay.model.values import Block, TopicPartition
from forebay.security.access import Access
from pyspark_forebay.options import SourceOptions

_log = logging.getLogger("forebay.source")

#: a driver answers within a sync, or is away
ANSWER_SECONDS = 20.0
#: between two signs of life of a query that reads by a cursor
KEEP_SECONDS = 1.0
#: between two questions to a driver that is away, or to one that still takes another user to be at work
PAUSE_SECONDS = 0.5
#: so long a query waits at its start for the end of the user before it, which was killed
IN_USE_SECONDS = 60.0

Answer = TypeVar("Answer")
#: life and offset
Place = tuple[int, int]
Places = Mapping[TopicPartition, Place]


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """``copies``: block id → hosts that were given a copy. ``lost``: label of a range → who accepted its loss, and why."""

    blocks: tuple[Block, ...]
    gaps: tuple[RecordedGap, ...]
    copies: Mapping[str, tuple[str, ...]]
    lost: Mapping[str, str]


class Intake:
    """The driver that leads, asked for ``patience_seconds`` while it is away or being replaced."""

    def __init__(self, urls: Sequence[str], access: Access, patience_seconds: float) -> None:
        self._client = DriverClient(urls, ANSWER_SECONDS, access)
        self._patience_seconds = patience_seconds
        self._closing = threading.Event()

    @classmethod
    def of(cls, options: SourceOptions) -> Intake:
        """As the options of a query say."""
        assert options.intake is not None
        return cls(options.intake.urls, options.intake.access, options.poll_timeout_seconds)

    def close(self) -> None:
        self._closing.set()
        self._client.close()

    def look(self) -> IntakeAnswer:
        """Raises UnreachableError."""
        return self._ask(lambda: self._client.get("/v1/cursors/intake", IntakeAnswer))

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        """From where on the WAL holds all."""
        request = EarliestRequest(partitions=tuple(sorted(partitions)))
        if not request.partitions:
            return {}
        answer = self._post("earliest", request, EarliestAnswer)
        return {place.tp: (place.incarnation, place.offset) for place in answer.places}

    def times(self, wanted: Sequence[TimedSpan]) -> tuple[TimedBlock, ...]:
        """Of each the first block that may hold the record, as far as one answer looks."""
        return self._post("times", TimesRequest(wanted=tuple(wanted)), TimesAnswer).found

    def blocks(self, spans: Sequence[IncarnationSpan]) -> FoundBlocks:
        """All that hold records of ``spans``, each once."""
        return self._blocks(spans, None)

    def span(self, request: SpanRequest) -> tuple[SpanAnswer, FoundBlocks]:
        """What is wanted of one partition, by offsets alone; all blocks that hold any of it."""
        answer = self._post("span", request, SpanAnswer)
        return answer, self._blocks(answer.spans, answer.found)

    def _blocks(self, spans: Sequence[IncarnationSpan], first: BlocksAnswer | None) -> FoundBlocks:
        """``first``: what was told of ``spans`` already."""
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
                raise UsageError("the driver's answer about blocks does not go on: is it of another release?")
            left = further
        return FoundBlocks(tuple(found.values()), tuple(gaps), copies, lost)

    def open(self, request: OpenCursorRequest) -> OpenCursorAnswer:
        """Waits for the end of a user that may have been killed. Raises RefusedError if it is at work."""
        waited = tenacity.Retrying(
            stop=tenacity.stop_after_delay(IN_USE_SECONDS),
            wait=tenacity.wait_fixed(PAUSE_SECONDS),
            sleep=self._pause,
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, RefusedError) and e.code == "in-use"),
            reraise=True,
        )
        answer: OpenCursorAnswer = waited(lambda: self._post("open", request, OpenCursorAnswer))
        return answer

    def move(self, request: MoveCursorRequest) -> None:
        """Raises FencedError, RefusedError, UnreachableError."""
        self._post("move", request, Done)

    def keep(self, request: MoveCursorRequest) -> None:
        """Once: whoever keeps comes again."""
        self._client.post("/v1/cursors/move", request, Done)

    def end(self, request: CloseCursorRequest) -> None:
        self._client.post("/v1/cursors/close", request, Done)

    def _post(self, path: str, request: msgspec.Struct, answer: type[Answer]) -> Answer:
        return self._ask(lambda: self._client.post(f"/v1/cursors/{path}", request, answer))

    def _ask(self, ask: Callable[[], Answer]) -> Answer:
        again = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._patience_seconds),
            wait=tenacity.wait_fixed(PAUSE_SECONDS),
            sleep=self._pause,
            retry=tenacity.retry_if_exception(
                lambda e: isinstance(e, UnreachableError) and not isinstance(e, AccessError)
            ),
            before_sleep=lambda state: _log.warning("%s: asking again", state.outcome and state.outcome.exception()),
            reraise=True,
        )
        found: Answer = again(ask)
        return found

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise UnreachableError("the query is stopping")


class QueryCursor:
    """A cursor in use: a thread says that its user is at work, until :meth:`close`."""

    def __init__(
        self, intake: Intake, name: str, user: str, key: str, places: Places, left: Iterable[TopicPartition]
    ) -> None:
        """The journal has it on return, at ``places``. ``key``: random, so that nobody else moves it. Raises RefusedError,
        UsageError, UnreachableError."""
        self.name = name
        self._intake = intake
        self._key = key
        request = OpenCursorRequest(
            cursor=name, user=user, places=place_messages(places), left=tuple(sorted(left)), key=self._key
        )
        answer = intake.open(request)
        if answer.ended:
            _log.warning(
                "cursor %s is there again, and begins where the query's checkpoint says. It had %s", name, answer.ended
            )
        self._epoch = answer.epoch
        self._gone: ForebayError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="cursor", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises FencedError or RefusedError if another one reads by it, or it was dropped."""
        if self._gone is not None:
            raise self._gone

    def move(self, places: Places, left: Iterable[TopicPartition]) -> None:
        """What lies before ``places`` is held no more. Raises as :meth:`check`, and UnreachableError."""
        self.check()
        request = MoveCursorRequest(
            cursor=self.name, epoch=self._epoch, places=place_messages(places), left=tuple(sorted(left)), key=self._key
        )
        self._intake.move(request)

    def close(self, forget: bool = False) -> None:
        """The next user need not wait. ``forget``: there will be none, since the query could not begin."""
        self._closing.set()
        self._thread.join()
        if self._gone is None:
            try:
                self._intake.end(CloseCursorRequest(cursor=self.name, epoch=self._epoch, forget=forget, key=self._key))
            except ForebayError as error:
                _log.warning("cursor %s: the driver was not told that the query ends: %s", self.name, error)

    def _keep(self) -> None:
        request = MoveCursorRequest(cursor=self.name, epoch=self._epoch, key=self._key)
        while not self._closing.wait(KEEP_SECONDS):
            try:
                self._intake.keep(request)
            except (FencedError, RefusedError) as error:
                self._gone = error
                return
            except ForebayError as error:
                _log.debug("cursor %s: %s", self.name, error)  # what it holds is journalled, whoever leads


class Progress:
    """Shows how far a query is in a consumer group, for lag tools; never authority, so what hinders it is only told."""

    def __init__(self, group: str, kafka: Mapping[str, str], groups: Iterable[str]) -> None:
        """``groups``: the stream's own. Raises UsageError."""
        if group in groups:
            raise UsageError(f"option progressGroup: {group!r} is a group of the stream's own: choose another name")
        if not kafka.get("bootstrap.servers"):
            raise UsageError("option progressGroup: the stream is not of Kafka, which keeps groups")
        self._group = group
        self._admin = KafkaAdmin(kafka, client_id="forebay-source")
        self._told = ""

    def show(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            refused = self._admin.publish(self._group, {tp: Committed(at, -1, "") for tp, at in offsets.items()})
            words = "; ".join(sorted(set(refused.values())))
        except ForebayError as error:
            words = str(error)
        if words and words != self._told:
            _log.warning("group %s: the query's progress could not be shown: %s", self._group, words)
        self._told = words

    def close(self) -> None:
        self._admin.close()


def partitions_of(answer: IntakeAnswer) -> dict[TopicPartition, IntakePartition]:
    return {partition.tp: partition for partition in answer.partitions}


def place_messages(places: Places) -> tuple[CursorPlace, ...]:
    return tuple(
        CursorPlace(topic=tp.topic, partition=tp.partition, incarnation=incarnation, offset=offset)
        for tp, (incarnation, offset) in sorted(places.items())
    )
