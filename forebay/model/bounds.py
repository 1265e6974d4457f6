"""Bounds of numbers and texts, as types: msgspec checks them when it decodes a message, a frame, an event or a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

#: Kafka's offsets are signed 64-bit numbers; a range ends at the offset of its last record + 1
OFFSET_MAX = 2**63 - 1
#: Kafka's leader epochs and partitions are signed 32-bit numbers
INT32_MAX = 2**31 - 1
#: maximum of assigned numbers and of counters: up to it, a JSON number is exact
NUMBER_MAX = 2**53 - 1
#: key of the number that replaces one outside its bounds in an older release's journal (``driver.journal.log.bounds``)
INSTEAD = "instead"

#: maximum characters of a text that a process reports, such as an error
TEXT_LENGTH_MAX = 1_000
#: maximum characters of a topic's name in Kafka
TOPIC_LENGTH_MAX = 249

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
#: an offset, or -1 for none
OffsetOrNone = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
#: -1 if the broker does not report it
LeaderEpoch = Annotated[int, Meta(ge=-1, le=INT32_MAX, extra={INSTEAD: -1})]
PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: an epoch, a token, a batch id, or the number of a request or block of a process
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: a number, or -1 for none
NumberOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
#: a rate per second, or a load; bounded so that sums stay finite
Amount = Annotated[float, Meta(ge=0, le=1e15)]
#: records of one block; the bound is far above what a payload of 2 GiB can hold
RecordCount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: milliseconds since 1970 UTC, as Kafka's timestamps
TimeMs = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
SIZE_MAX = 2**63 - 1
#: bytes
Size = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
#: position of a byte in a file; length of a frame, which is below 2 GiB + 17 MiB
FilePlace = Annotated[int, Meta(ge=0, le=2**48)]
FrameLength = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
Topic = Annotated[str, Meta(max_length=TOPIC_LENGTH_MAX)]
Checksum = Annotated[int, Meta(ge=0, le=2**32 - 1)]
#: a SHA-256
Sha256 = Annotated[bytes, Meta(min_length=32, max_length=32)]


def total_size(sizes: Iterable[int]) -> int:
    """Return the sum of sizes, at most :data:`SIZE_MAX`: a receiver may report any size for each of its blocks."""
    return min(sum(sizes), SIZE_MAX)
