"""The section ``[kafka]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated, Any, Literal

import msgspec

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import (
    GroupName,
    PositiveDuration,
    StartingOffsets,
    TopicName,
    TopicPattern,
    least,
)
from forebay.settings.schema.section import Section, doc

#: librdkafka's only keys for a consumer or an admin client that have no dot: any other such key is a slip
UNDOTTED_OPTIONS = frozenset({"debug", "retries"})


class KafkaSettings(Section, frozen=True, kw_only=True):
    """Source of the records. Every other key goes to librdkafka unchanged, as in `"security.protocol" = "SSL"`."""

    topics: Annotated[tuple[TopicName, ...], doc("names of the topics; either these or pattern")] = ()
    pattern: Annotated[
        TopicPattern | None,
        doc(
            "regular expression in Python's syntax, beginning with ^, that matches whole topic names, but none that begins "
            "with __",
            example="^orders\\..*",
        ),
    ] = None
    starting_offsets: Annotated[
        StartingOffsets,
        doc(
            'first offset of partitions that exist when the stream is created or the topic is added: "earliest", "latest", '
            '"committed", {timestamp = MS} or {"topic/partition" = OFFSET, …}; partitions added later start at their '
            "beginning"
        ),
    ] = "earliest"
    on_gap: Annotated[
        Literal["stop", "record"],
        doc(
            'reaction to records that Kafka dropped before they were taken in: "stop" pauses the partition until `forebay '
            'offsets accept-gap`, "record" records the gap and goes on'
        ),
    ] = "stop"
    group: Annotated[
        GroupName | None, doc("consumer group of the receivers; if unset, forebay.STREAM", example="forebay.orders")
    ] = None
    headers: Annotated[bool, doc("whether record headers are taken in")] = False
    read_blocks: Annotated[
        bool, doc("whether a batch may read records again from Kafka when no copy of their block is left")
    ] = True
    read_timeout: Annotated[
        PositiveDuration, doc("maximum time a broker may return no data or leave a request unanswered")
    ] = Duration(20.0)
    read_prefetch: Annotated[
        Size,
        least(1 << 20),  # librdkafka fetches no less
        doc("maximum size of the messages that a task's Kafka client holds in advance"),
    ] = Size(8_000_000)
    discovery_interval: Annotated[PositiveDuration, doc("time between two checks for new topics and partitions")] = (
        Duration(30.0)
    )
    #: every other key, passed to librdkafka unchanged
    options: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        """Without the options, which may hold passwords."""
        return f"<KafkaSettings of {self.pattern or ', '.join(self.topics)}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("of", self.pattern or self.topics)]
