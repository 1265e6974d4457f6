"""The class that ``receiver.source`` names: found, checked, made; and which partitions it has, and whose each is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forebay.model.errors import SettingsError, SourceError, UnreachableError, UsageError
from forebay.model.values import TopicPartition, managed_id, managed_ordinal
from forebay.settings.named import find
from forebay.settings.schema import Settings
from forebay.sources.receiving import UNKNOWN_END, ReliableSource, RetryLater, UnreliableSource

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: an end beyond every offset, for a log that can't tell its own: nothing lies above it
END_UNTOLD = 1 << 62

CustomSource = ReliableSource | UnreliableSource


def make(settings: Settings) -> CustomSource:
    """The user's source, made with ``receiver.source_options``. Raises SettingsError that says what is wrong with it."""
    written = settings.receiver.source
    own = _find(written)
    options = settings.receiver.source_options
    try:
        inspect.signature(own).bind(**options)
    except TypeError as error:
        raise SettingsError(
            f"receiver.source_options: {written} is made with {inspect.signature(own)}: {error}"
        ) from None
    try:
        made: CustomSource = own(**options)
    except Exception as error:  # whatever the user's constructor says of its options
        raise SettingsError(
            f"receiver.source: {written}: making it with receiver.source_options failed: {type(error).__name__}: {error}"
        ) from error
    if isinstance(made, UnreliableSource) and made.name and not is_name(made.name):
        raise SettingsError(f"receiver.source: {written}: name = {made.name!r}: {_ALLOWED}")
    return made


_ALLOWED = "a name has 1 to 249 letters, digits, '.', '_' and '-', and is not '.' or '..'"


def is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in (".", "..")


def _find(written: str) -> Any:
    found = find("receiver.source", written, "class", inspect.isclass)
    if not issubclass(found, ReliableSource | UnreliableSource):
        raise SettingsError(
            f"receiver.source: {written!r} is no source: it must be a subclass of ReliableSource or UnreliableSource "
            "of forebay.sources.receiving"
        )
    missing: Iterable[str] = getattr(found, "__abstractmethods__", ())
    if missing:
        raise SettingsError(f"receiver.source: {written!r} lacks {', '.join(sorted(missing))}()")
    return found


def ordinal_of(settings: Settings, receiver_id: str) -> int:
    """Which of the ``receiver.count`` receivers this is, from 0. Raises UsageError for an id that does not say.

    The id is the ordinal and nothing else is, so two processes of one ordinal have one id, and registration leaves one.
    """
    count = settings.receiver.count
    ordinal = managed_ordinal(settings.stream, receiver_id)
    if ordinal is None or ordinal >= count:
        last = f" to {managed_id(settings.stream, count - 1)}" if count > 1 else ""
        raise UsageError(
            f"receiver id {receiver_id!r}: with a source of your own and receiver.count = {count} the receivers are "
            f"{managed_id(settings.stream, 0)}{last}: the number says which partitions are whose"
        )
    return ordinal


def dealt(names: Iterable[str], ordinal: int, count: int) -> list[str]:
    """The partitions of receiver ``ordinal`` of ``count``: each is one's, and all have as many, within one."""
    return sorted(names)[ordinal::count]


def called(settings: Settings, method: str, error: BaseException) -> SourceError:
    """What the user's ``method`` raised, in words."""
    return SourceError(f"{settings.receiver.source}: {method}(): {type(error).__name__}: {error}")


class CustomUpstream:
    """What the driver asks of Kafka, answered by a source of the user's own. Implements ``driver.background.upstream.Upstream``.

    There is no group: what its receivers took in is the journal's to say, and nobody else's.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for a class that can't be had."""
        self._settings = settings
        self._source = make(settings)

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """All there are, whatever the arguments. Raises UnreachableError for RetryLater, SourceError."""
        return set(partitions_of(self._settings, self._source))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self._ask("identity", topic, "") for topic in topics}

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """Raises UsageError for a time, and for an offset that can't be read."""
        wanted = list(partitions)
        first = {tp: max(0, self._ask("first_offset", tp.topic, 0)) for tp in wanted}
        if not isinstance(policy, str):
            return {tp: self._explicit(policy, tp, first[tp]) for tp in wanted}
        if policy != "latest":
            return first
        ends = {tp: self._ask("end_offset", tp.topic, 0) for tp in wanted}
        untold = sorted(str(tp) for tp in wanted if ends[tp] == UNKNOWN_END)
        if untold:
            raise UsageError(f'kafka.starting_offsets = "latest": the end of {", ".join(untold)} can\'t be told')
        return ends

    def _explicit(self, policy: Mapping[str, int], tp: TopicPartition, first: int) -> int:
        if "timestamp" in policy or isinstance(self._source, UnreliableSource):
            raise UsageError(
                f"{self._settings.receiver.source} can't begin at a time, nor an unreliable source at an offset"
            )
        end = self._ask("end_offset", tp.topic, 0)
        wanted = policy.get(str(tp), first)
        if wanted < first or (end != UNKNOWN_END and wanted > end):
            raise UsageError(f"starting offset {wanted} of {tp}: {self._settings.receiver.source} has {first} to {end}")
        return wanted

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if isinstance(self._source, UnreliableSource):
            raise UsageError("--until-caught-up: an unreliable source has no end")
        ends = {tp: self._ask("end_offset", tp.topic, 0) for tp in partitions}
        untold = sorted(str(tp) for tp, end in ends.items() if end == UNKNOWN_END)
        if untold:
            raise UsageError(f"--until-caught-up: the end of {', '.join(untold)} can't be told: write end_offset()")
        return ends

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return {}

    def publish(self, group: str, positions: Mapping[TopicPartition, Any]) -> dict[TopicPartition, str]:
        return {}

    def why_silent(self) -> str:
        return ""

    def _ask(self, method: str, name: str, of_unreliable: Any) -> Any:
        if isinstance(self._source, UnreliableSource):
            return of_unreliable
        return ask(self._settings, self._source, method, name)


def partitions_of(settings: Settings, source: CustomSource) -> Sequence[TopicPartition]:
    """All partitions of the stream. Raises UnreachableError for RetryLater, SourceError."""
    if isinstance(source, UnreliableSource):
        return [TopicPartition(source.name or settings.stream, number) for number in range(settings.receiver.count)]
    names = list(ask(settings, source, "partitions"))
    wrong = next((name for name in names if not is_name(name)), None)
    if wrong is not None:
        raise SourceError(f"{settings.receiver.source}: partitions() gave {wrong!r}: {_ALLOWED}")
    if len(set(names)) != len(names):
        raise SourceError(f"{settings.receiver.source}: partitions() gave a name twice: {', '.join(sorted(names))}")
    return [TopicPartition(name, 0) for name in names]


def ask(settings: Settings, source: ReliableSource, method: str, *arguments: Any) -> Any:
    """Asks the user's source. Raises UnreachableError where it says RetryLater, SourceError for all else that it raises, and
    for an answer of another type."""
    try:
        answer = getattr(source, method)(*arguments)
    except RetryLater as error:
        raise UnreachableError(f"{settings.receiver.source}: {method}(): {error}") from None
    except Exception as error:
        raise called(settings, method, error) from error
    if method in ("first_offset", "end_offset") and (
        type(answer) is not int or not UNKNOWN_END <= answer <= END_UNTOLD
    ):
        raise SourceError(
            f"{settings.receiver.source}: {method}() gave {answer!r}: it must be a whole number from -1 to {END_UNTOLD}"
        )
    if method == "identity" and not isinstance(answer, str):
        raise SourceError(f"{settings.receiver.source}: identity() gave {answer!r}: it must be a text")
    return answer
