"""Which records are wanted, and which records of a block are looked at."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from deploy.commands.inspection.tap.paths import Condition
from forebay import messages as m
from forebay.model.wire import UNDECODABLE

#: maximum number of records in one answer of the driver
PAGE = 100
_LABEL = re.compile(r"(?P<topic>.+)/(?P<partition>\d{1,10})(?:\[|$)")


@dataclass(frozen=True, slots=True)
class TapFilter:
    """Which records are wanted. "" and None: any.

    ``key``: part of the record's key, as UTF-8. ``conditions``: on the value, which must be JSON then.
    """

    topic: str = ""
    partition: int | None = None
    key: str = ""
    conditions: tuple[Condition, ...] = ()

    @property
    def filters_records(self) -> bool:
        """Whether a record must be read to know whether it is wanted."""
        return bool(self.key or self.conditions)

    @property
    def is_filtered(self) -> bool:
        """Whether a block may have records that are not wanted."""
        return self.filters_records or bool(self.topic) or self.partition is not None

    def wants_block(self, labels: tuple[str, ...]) -> bool:
        """Return whether a block may have wanted records. ``labels``: its ranges, such as ``flights/0[0, 10)``."""
        places = [found for label in labels if (found := _LABEL.match(label)) is not None]
        return any(self._place(found["topic"], int(found["partition"])) for found in places)

    def wants(self, record: m.RecordEntry) -> bool:
        if not self._place(record.topic, record.partition):
            return False
        if self.key and self.key.encode() not in (record.key or b""):
            return False
        if not self.conditions:
            return True
        document = document_of(record.value)
        return document is not NO_DOCUMENT and all(condition.holds(document) for condition in self.conditions)

    def _place(self, topic: str, partition: int) -> bool:
        return (not self.topic or topic == self.topic) and (self.partition is None or partition == self.partition)


#: stands for a value that is no JSON document
NO_DOCUMENT = object()


def document_of(value: bytes | None) -> Any:
    """Return the JSON document in ``value``, or NO_DOCUMENT."""
    if value is None:
        return NO_DOCUMENT
    try:
        return msgspec.json.decode(value)
    except UNDECODABLE:
        return NO_DOCUMENT


def places(total: int, wanted: int, searched: bool, choice: random.Random) -> Iterator[tuple[int, int]]:
    """Yield (number of the first record, number of records) of each request for a block of ``total`` records.

    ``wanted``: the records that may still be shown. ``searched``: whether records are filtered; then all are read in order,
    otherwise one run of ``wanted`` records at a place chosen at random.
    """
    if searched:
        yield from ((first, min(PAGE, total - first)) for first in range(0, total, PAGE))
        return
    count = min(wanted, total, PAGE)
    if count > 0:
        yield choice.randint(0, total - count), count
