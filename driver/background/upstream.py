"""What the driver needs of a stream's source: its partitions, and where they begin and end.

Implemented by ``forebay.kafka.client.admin.KafkaAdmin``, and by ``forebay.sources.custom.CustomUpstream`` over the user's
class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from forebay.kafka.client.admin import Committed
from forebay.kafka.client.positions import Point
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings


class Upstream(Protocol):
    """A source. Any method may raise UnreachableError; the driver then calls it again."""

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """Return the partitions that exist now, of the named topics or of those that ``pattern`` matches."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic → id, which differs from that of another topic of the same name; "" if it is not known."""

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """Return where each partition begins by ``kafka.starting_offsets``. Raises UsageError if the policy can't be applied."""

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return for each partition the offset after the last record that can be read now."""

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the commits of ``group``. Partitions without a commit are omitted; a source without groups returns {}."""

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        """Commit ``positions`` for ``group`` if the source has groups. Return partition → error; {} if all succeeded."""

    def why_silent(self) -> str:
        """Return why the source does not answer; "" if it is not known. Never waits."""


def upstream_of(settings: Settings) -> Upstream:
    """Return the source that ``settings`` name. Raises SettingsError if the user's class can't be imported."""
    if settings.custom_source:
        from forebay.sources.custom import CustomUpstream

        return CustomUpstream(settings)
    from forebay.kafka.client.admin import KafkaAdmin

    return KafkaAdmin(settings.kafka.options)
