"""What an older release journalled with numbers outside their bounds (``forebay.model.values``), read all the same.

Releases before the bounds accepted any number from a receiver. Such a record must not keep the stream's journal shut, and
nothing of the stream may be lost by it:

1. :func:`decode` brings each number to the nearest one within its bounds, or to what its type names in its place, and says so;
2. :func:`begin_again` begins a new life of each partition whose position is thereby the last offset there is. It begins where
   the range began that claimed too much, so Kafka's records from there on are taken in, some maybe for the second time.

A range whose offsets or counts were changed holds no records in the state. No tier has a block with such a range, so its batch
fails as unreadable, until a person accepts the loss: the new life takes in all that it could have held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from driver.journal import events as ev
from driver.journal.state import Partition, State
from driver.journal.transitions import apply
from forebay.model.errors import ForebayError
from forebay.model.values import INSTEAD, OFFSET_MAX, BlockMeta, OffsetRange

T = TypeVar("T")


def decode(data: Any, type_: type[T]) -> tuple[T, tuple[str, ...]] | None:
    """The ``type_`` that is msgpack in ``data``, with each number brought within its bounds, and a sentence on each. None if
    there is none outside, or ``data`` is no such value for another reason too."""
    found = _Bringing()
    try:
        tree = found.within(inspect.type_info(type_), msgspec.msgpack.decode(data), "$")
        return (msgspec.convert(tree, type_), tuple(found.said)) if found.said else None
    except (msgspec.MsgspecError, ForebayError, LookupError, TypeError, ValueError, RecursionError):
        return None


def begin_again(state: State) -> tuple[str, ...]:
    """Begins a new life of each partition that ends at the last offset there is; a sentence on each. ``state``: as the journal
    says, with numbers that :func:`decode` brought within bounds; the new lives are durable with its next snapshot."""
    said = []
    for partition in list(state.partitions.values()):
        if partition.position != OFFSET_MAX:
            continue
        start, block_id = _claimed_too_much(state, partition)
        cause = (
            f"the journal of an older release had block {block_id or '(deleted)'} end beyond the last offset there is: begun "
            f"again at {start}"
        )
        begun = ev.IncarnationStart(partition.topic, partition.partition, start, partition.incarnation.topic_id)
        apply(
            state, ev.IncarnationBegun(begun, partition.incarnation.time_ms, cause)
        )  # of the life before: a reader has no clock
        said.append(f"{partition.tp}: life {partition.incarnation.number} begins at offset {start}: {cause}")
    return tuple(said)


def _claimed_too_much(state: State, partition: Partition) -> tuple[int, str]:
    """Where the last range of the newest life begins, and its block; the life's start and "" if the block is deleted."""
    incarnation = partition.incarnation
    found = (
        (r.from_offset, block.id)
        for block in state.blocks.values()
        for r in block.meta.ranges
        if (r.tp, r.incarnation, r.until_offset) == (partition.tp, incarnation.number, OFFSET_MAX)
    )
    return min(found, default=(incarnation.start, ""))


class _Bringing:
    """``said``: a sentence on each number that was brought within its bounds."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def within(self, type_: inspect.Type, value: Any, at: str) -> Any:
        match type_:
            case inspect.Metadata(type=inspect.IntType() as inner):
                return self._nearest(inner, (type_.extra or {}).get(INSTEAD), value, at)
            case inspect.IntType():
                return self._nearest(type_, None, value, at)
            case inspect.StrType(max_length=longest) if isinstance(value, str) and longest and len(value) > longest:
                self.said.append(f"{at} has {len(value)} characters, {longest} are allowed: cut")
                return value[:longest]
            case inspect.StructType() if isinstance(value, dict):
                return self._struct(type_, value, at)
            case inspect.UnionType():
                return self.within(_member(type_, value), value, at)
            case inspect.DictType(value_type=inner) if isinstance(value, dict):
                return {key: self.within(inner, one, f"{at}[{key!r}]") for key, one in value.items()}
            case inspect.TupleType(item_types=inner) if isinstance(value, list):
                return [
                    self.within(each, one, f"{at}[{n}]")
                    for n, (each, one) in enumerate(zip(inner, value, strict=False))
                ]
            case inspect.CollectionType(item_type=inner) if isinstance(value, list):
                return [self.within(inner, one, f"{at}[{n}]") for n, one in enumerate(value)]
        return value

    def _struct(self, type_: inspect.StructType, value: dict[str, Any], at: str) -> dict[str, Any]:
        before = len(self.said)
        fields = {field.encode_name: field.type for field in type_.fields}
        made = {
            name: self.within(fields[name], one, f"{at}.{name}") if name in fields else one
            for name, one in value.items()
        }
        if len(self.said) > before:
            if type_.cls is OffsetRange and any(made[name] != value[name] for name in ("from", "until", "records")):
                made["records"] = 0
            elif type_.cls is BlockMeta:
                made["records"] = sum(r["records"] for r in made["ranges"])
        return made

    def _nearest(self, type_: inspect.IntType, instead: int | None, value: Any, at: str) -> Any:
        low, high = type_.ge, type_.le
        if not isinstance(value, int) or low is None or high is None or low <= value <= high:
            return value
        brought = instead if instead is not None else min(max(value, low), high)
        self.said.append(f"{at} is {value}, outside of {low} to {high}: taken as {brought}")
        return brought


def _member(union: inspect.UnionType, value: Any) -> inspect.Type:
    """The type in the union that ``value`` is of: of several structs the one with its tag."""
    if isinstance(value, Mapping):
        for one in union.types:
            if isinstance(one, inspect.StructType) and (one.tag_field is None or value.get(one.tag_field) == one.tag):
                return one
    others = (one for one in union.types if not isinstance(one, inspect.NoneType | inspect.StructType))
    return next(others, inspect.NoneType())
