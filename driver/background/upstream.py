"""The seam to what the stream is received from, as the driver sees it: which partitions there are, and where they begin and end.

Implemented by ``forebay.kafka.client.admin.KafkaAdmin``, and by ``forebay.sources.custom.CustomUpstream`` over a class of the
user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from forebay.kafka.client.admin import Committed
from forebay.kafka.client.positions import Point
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings


class Upstream(Protocol):
    """Any method may raise UnreachableError: it is asked again."""

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """All there are now, of topics named or found by ``pattern``."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Topic → id, which another topic of that name does not have; "" where it can't be told."""

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """Where each partition begins by ``kafka.starting_offsets``. Raises UsageError for a policy that can't be followed."""

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read now."""

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What ``group`` has committed; partitions without are left out, all of them where there are no groups."""

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        """Shows ``positions`` as commits of ``group``, where there are groups; partition → error, {} if all went."""

    def why_silent(self) -> str:
        """Why the source has not answered since it last did; "" if nothing is known. Never waits."""


def upstream_of(settings: Settings) -> Upstream:
    """What ``settings`` receive from. Raises SettingsError for a class that can't be had."""
    if settings.custom_source:
        from forebay.sources.custom import CustomUpstream

        return CustomUpstream(settings)
    from forebay.kafka.client.admin import KafkaAdmin

    return KafkaAdmin(settings.kafka.options)
