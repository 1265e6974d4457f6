"""The consumer group that shows the progress of a query over an intake to Kafka's lag tools."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import TopicPartition

_log = logging.getLogger("forebay.source")


class ProgressGroup:
    """Commits the offsets of a query to a consumer group, for lag tools.

    The query never reads them, so failures are only logged.
    """

    def __init__(self, group: str, kafka: Mapping[str, str], groups: Iterable[str]) -> None:
        """``groups``: the consumer groups of the stream, which ``group`` must not be. Raises UsageError."""
        if group in groups:
            raise UsageError(
                f"option progressGroup: {group!r} is a consumer group of the stream itself: choose another name"
            )
        if not kafka.get("bootstrap.servers"):
            raise UsageError(
                "option progressGroup: the stream does not read Kafka, so it has no consumer groups: remove the option"
            )
        self._group = group
        self._admin = KafkaAdmin(kafka, client_id="forebay-source")
        self._warned = ""

    def show(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit ``offsets``. A failure is logged, the same one only once."""
        try:
            refused = self._admin.publish(self._group, {tp: Committed(at, -1, "") for tp, at in offsets.items()})
            reason = "; ".join(sorted(set(refused.values())))
        except ForebayError as error:
            reason = str(error)
        if reason and reason != self._warned:
            _log.warning("cannot commit the query's progress to group %s: %s", self._group, reason)
        self._warned = reason

    def close(self) -> None:
        self._admin.close()
