"""Creates the custom source that ``receiver.source`` names, and assigns its partitions to receivers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from forebay.model.errors import SettingsError, SourceError, UnreachableError, UsageError
from forebay.model.identifiers import managed_id, managed_ordinal
from forebay.model.values import TopicPartition
from forebay.settings.named import find
from forebay.settings.schema import Settings
from forebay.sources.receiving import UNKNOWN_END, ReliableSource, RetryLater, UnreliableSource

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: an end above every offset, for a source that can't report its own
UNREPORTED_END = 1 << 62

CustomSource = ReliableSource | UnreliableSource
P = ParamSpec("P")
R = TypeVar("R")


def make(settings: Settings) -> CustomSource:
    """Create the custom source with ``receiver.source_options``. Raises SettingsError for an invalid class or options."""
    written = settings.receiver.source
    own = _find(written)
    options = settings.receiver.source_options
    try:
        inspect.signature(own).bind(**options)
    except TypeError as error:
        raise SettingsError(
            f"receiver.source_options: the parameters of {written} are {inspect.signature(own)}: {error}"
        ) from None
    try:
        made: CustomSource = own(**options)
    except Exception as error:  # the user's constructor may raise anything
        raise SettingsError(
            f"receiver.source: cannot create {written} with receiver.source_options: {type(error).__name__}: {error}"
        ) from error
    if isinstance(made, UnreliableSource) and made.name and not is_name(made.name):
        raise SettingsError(f"receiver.source: {written}: name = {made.name!r}: {_ALLOWED}")
    return made


_ALLOWED = "a name has 1 to 249 letters, digits, '.', '_' and '-', and is not '.' or '..'"


def is_name(name: object) -> bool:
    """Return whether ``name`` can be the name of a partition or topic."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")


def _find(written: str) -> Any:
    found = find("receiver.source", written, "class", inspect.isclass)
    if not issubclass(found, ReliableSource | UnreliableSource):
        raise SettingsError(
            f"receiver.source: {written!r} is not a source: it must be a subclass of ReliableSource or UnreliableSource "
            "of forebay.sources.receiving"
        )
    missing: Iterable[str] = getattr(found, "__abstractmethods__", ())
    if missing:
        raise SettingsError(f"receiver.source: {written!r} lacks {', '.join(sorted(missing))}()")
    return found


def ordinal_of(settings: Settings, receiver_id: str) -> int:
    """Return the ordinal in the receiver's id. Raises UsageError if it has none, or one not below ``receiver.count``.

    Two processes with the same ordinal have the same id, so registration fences one of them.
    """
    count = settings.receiver.count
    ordinal = managed_ordinal(settings.stream, receiver_id)
    if ordinal is None or ordinal >= count:
        last = f" to {managed_id(settings.stream, count - 1)}" if count > 1 else ""
        raise UsageError(
            f"receiver id {receiver_id!r} is invalid: with a custom source and receiver.count = {count}, allowed ids are "
            f"{managed_id(settings.stream, 0)}{last}; the number selects the partitions that a receiver reads"
        )
    return ordinal


def dealt(names: Iterable[str], ordinal: int, count: int) -> list[str]:
    """Return the partitions that receiver ``ordinal`` of ``count`` receivers reads.

    Each partition has exactly one receiver, and each receiver the same number of partitions, give or take one.
    """
    return sorted(names)[ordinal::count]


def called(settings: Settings, method: str, error: BaseException) -> SourceError:
    """Return the error for an exception of the user's ``method``."""
    return SourceError(f"{settings.receiver.source}: {method}(): {type(error).__name__}: {error}")


class CustomUpstream:
    """Answers the driver's requests from a custom source. Implements ``forebay.sources.kind.Upstream``.

    There is no consumer group: only the journal knows what the receivers have taken in.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for a class that can't be created."""
        self._settings = settings
        self._source = make(settings)

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """Return all partitions, for any arguments. Raises UnreachableError for RetryLater, SourceError."""
        return set(partitions_of(self._settings, self._source))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        if isinstance(self._source, UnreliableSource):
            return dict.fromkeys(topics, "")
        return {topic: identity(self._settings, self._source, topic) for topic in topics}

    def listed_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return self.topic_ids(topics)

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """As ``Upstream.starting_offsets``. Raises UsageError for a time, and for an offset that can't be read."""
        wanted = list(partitions)
        first = {tp: self._first(tp) for tp in wanted}
        if not isinstance(policy, str):
            return {tp: self._explicit(policy, tp, first[tp]) for tp in wanted}
        if policy != "latest":
            return first
        ends = {tp: self._end(tp) for tp in wanted}
        unknown = sorted(str(tp) for tp in wanted if ends[tp] == UNKNOWN_END)
        if unknown:
            raise UsageError(f'kafka.starting_offsets = "latest": the end of {", ".join(unknown)} is unknown')
        return ends

    def _explicit(self, policy: Mapping[str, int], tp: TopicPartition, first: int) -> int:
        if "timestamp" in policy or isinstance(self._source, UnreliableSource):
            raise UsageError(
                f"{self._settings.receiver.source} can't begin at a time, and an unreliable source can't begin at an offset"
            )
        end = self._end(tp)
        wanted = policy.get(str(tp), first)
        if wanted < first or (end != UNKNOWN_END and wanted > end):
            raise UsageError(f"starting offset {wanted} of {tp}: {self._settings.receiver.source} has {first} to {end}")
        return wanted

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if isinstance(self._source, UnreliableSource):
            raise UsageError("--until-caught-up: an unreliable source has no end")
        ends = {tp: self._end(tp) for tp in partitions}
        unknown = sorted(str(tp) for tp, end in ends.items() if end == UNKNOWN_END)
        if unknown:
            raise UsageError(f"--until-caught-up: the end of {', '.join(unknown)} is unknown: implement end_offset()")
        return ends

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return {}

    def publish(self, group: str, positions: Mapping[TopicPartition, Any]) -> dict[TopicPartition, str]:
        return {}

    def why_silent(self) -> str:
        return ""

    def _first(self, tp: TopicPartition) -> int:
        if isinstance(self._source, UnreliableSource):
            return 0
        return max(0, first_offset(self._settings, self._source, tp.topic))

    def _end(self, tp: TopicPartition) -> int:
        if isinstance(self._source, UnreliableSource):
            return 0
        return end_offset(self._settings, self._source, tp.topic)


def partitions_of(settings: Settings, source: CustomSource) -> Sequence[TopicPartition]:
    """Return all partitions of the stream. Raises UnreachableError for RetryLater, SourceError."""
    if isinstance(source, UnreliableSource):
        return [TopicPartition(source.name or settings.stream, number) for number in range(settings.receiver.count)]
    names = list(_ask(settings, "partitions", source.partitions))
    wrong = next((name for name in names if not is_name(name)), None)
    if wrong is not None:
        raise SourceError(f"{settings.receiver.source}: partitions() returned {wrong!r}: {_ALLOWED}")
    if len(set(names)) != len(names):
        raise SourceError(f"{settings.receiver.source}: partitions() returned a name twice: {', '.join(sorted(names))}")
    return [TopicPartition(name, 0) for name in names]


def first_offset(settings: Settings, source: ReliableSource, name: str) -> int:
    """Return the first offset of partition ``name``. Raises UnreachableError for RetryLater, SourceError."""
    return _offset(settings, "first_offset", _ask(settings, "first_offset", source.first_offset, name))


def end_offset(settings: Settings, source: ReliableSource, name: str) -> int:
    """Return the end of partition ``name``, or UNKNOWN_END. Raises UnreachableError for RetryLater, SourceError."""
    return _offset(settings, "end_offset", _ask(settings, "end_offset", source.end_offset, name))


def identity(settings: Settings, source: ReliableSource, name: str) -> str:
    """Return the identity of partition ``name``. Raises UnreachableError for RetryLater, SourceError."""
    answer: object = _ask(settings, "identity", source.identity, name)
    if not isinstance(answer, str):
        raise SourceError(f"{settings.receiver.source}: identity() returned {answer!r}: it must be a string")
    return answer


def _offset(settings: Settings, method: str, answer: object) -> int:
    if type(answer) is not int or not UNKNOWN_END <= answer <= UNREPORTED_END:
        raise SourceError(
            f"{settings.receiver.source}: {method}() returned {answer!r}: it must be a whole number from -1 to {UNREPORTED_END}"
        )
    return answer


def _ask(settings: Settings, name: str, method: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Call ``method`` of the user's source, which errors call ``name``. Raises UnreachableError for RetryLater, SourceError for
    any other exception."""
    try:
        return method(*arguments, **named)
    except RetryLater as error:
        raise UnreachableError(f"{settings.receiver.source}: {name}(): {error}") from None
    except Exception as error:
        raise called(settings, name, error) from error
