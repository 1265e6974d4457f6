"""What differs between a stream from Kafka and a stream from a custom source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings

if TYPE_CHECKING:  # so that commands start without Kafka's client
    from forebay.kafka.client.admin import Committed
    from forebay.kafka.client.group_offsets import Point


class Upstream(Protocol):
    """What the driver asks of the origin of its stream: the partitions, and where they begin and end.

    Implemented by ``forebay.kafka.client.admin.KafkaAdmin`` and ``forebay.sources.custom.CustomUpstream``. Each method may raise
    UnreachableError; the driver then repeats the call.
    """

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """Return all present partitions of ``topics`` and of the topics that ``pattern`` matches."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic → id; "" if it has none. A topic that is created again under the same name has another id."""

    def listed_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic → id of topics of present partitions; "" if the source has no ids."""

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """Return the offset at which each partition begins, by ``kafka.starting_offsets``.

        Raises UsageError for a policy that can't be applied.
        """

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record that can be read now."""

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the commits of ``group``. Partitions without a commit are omitted; {} if the source has no groups."""

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        """Commit ``positions`` for ``group``, if the source has groups. Return partition → error; {} on success."""

    def why_silent(self) -> str:
        """Return why the source has not answered since it last did; "" if unknown. Never waits."""


class SourceKind(Protocol):
    """One kind of source. A new kind needs an implementation here and a receiver's source in ``receiver.main.source_of``.

    Other code asks for the properties here, not for the value of ``receiver.source``.
    """

    #: its name in log lines and in the status
    title: str
    #: whether the stream has consumer groups in Kafka, with committed offsets, lag and end offsets
    has_groups: bool
    #: whether the processes import a class of the user
    runs_user_code: bool
    #: whether a receiver's id decides which partitions it reads; otherwise a consumer group assigns them
    id_selects_partitions: bool

    def names_topics(self) -> bool:
        """Return whether the configuration names each topic.

        If so, the partitions of a new topic begin by ``kafka.starting_offsets``. Otherwise they begin at their beginning: what
        was written before the topic was found is not skipped.
        """

    def kafka_options(self) -> Mapping[str, str]:
        """Return the options by which clients reach Kafka; {} without Kafka."""

    def kafka_access(self) -> KafkaAccess | None:
        """Return the access with which tasks read a block's records from Kafka; None if they do not."""

    def upstream(self) -> Upstream:
        """Return a new client for the driver. Raises SettingsError for options or a class that can't be used."""


def source_kind(settings: Settings) -> KafkaSourceKind | CustomSourceKind:
    """Return the kind of source that ``settings`` name."""
    return CustomSourceKind(settings) if settings.custom_source else KafkaSourceKind(settings)


class KafkaSourceKind(SourceKind):
    """Kafka topics (``receiver.source = "kafka"``)."""

    title = "Kafka"
    has_groups = True
    runs_user_code = False
    id_selects_partitions = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def names_topics(self) -> bool:
        return self._settings.kafka.pattern is None

    def kafka_options(self) -> Mapping[str, str]:
        return self._settings.kafka.options

    def kafka_access(self) -> KafkaAccess | None:
        return KafkaAccess.of(self._settings) if self._settings.kafka.read_blocks else None

    def upstream(self) -> Upstream:
        from forebay.kafka.client.admin import KafkaAdmin

        return KafkaAdmin(self._settings.kafka.options)


class CustomSourceKind(SourceKind):
    """A class of the user (``receiver.source = "module:Class"``)."""

    title = "source"
    has_groups = False
    runs_user_code = True
    id_selects_partitions = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def names_topics(self) -> bool:
        return False

    def kafka_options(self) -> Mapping[str, str]:
        return {}

    def kafka_access(self) -> KafkaAccess | None:
        return None

    def upstream(self) -> Upstream:
        from forebay.sources.custom import CustomUpstream

        return CustomUpstream(self._settings)
