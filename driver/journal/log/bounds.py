"""Reading of journals in which an older release stored numbers outside their bounds (``forebay.model.values``).

Older releases accepted any number from a receiver. Such an event must neither make the journal unreadable nor lose records:

1. :func:`decode` replaces each such number by the nearest one within its bounds, or by the value that its type names, and reports
   it.
2. :func:`begin_again` begins a new incarnation of each partition whose position became the highest possible offset. It begins at
   the start of the range that was too large, so Kafka's records from there on are taken in, some perhaps twice.

A range whose offsets or counts were changed contains no records in the state. No tier has a block with such a range, so its batch
fails as unreadable until an operator accepts the loss. The new incarnation takes in everything that the range could contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.state_parts import Partition
from driver.journal.transitions import apply
from forebay.model.bounds import INSTEAD, OFFSET_MAX
from forebay.model.errors import ForebayError
from forebay.model.values import BlockMeta, BlockRange

T = TypeVar("T")


def decode(data: Any, type_: type[T]) -> tuple[T, tuple[str, ...]] | None:
    """Decode ``data`` (msgpack) as ``type_``, with each number moved within its bounds, and return it with one sentence for each.

    Returns None if no number is outside its bounds, or if ``data`` is invalid for another reason too.
    """
    found = _Correction()
    try:
        tree = found.within(inspect.type_info(type_), msgspec.msgpack.decode(data), "$")
        return (msgspec.convert(tree, type_), tuple(found.said)) if found.said else None
    except (msgspec.MsgspecError, ForebayError, LookupError, TypeError, ValueError, RecursionError):
        return None


def begin_again(state: State) -> tuple[str, ...]:
    """Begin a new incarnation of each partition whose position is the highest possible offset; return one sentence for each.

    ``state``: as read, with numbers that :func:`decode` moved within bounds. The new incarnations are durable with the next
    snapshot.
    """
    said = []
    for partition in list(state.partitions.values()):
        if partition.position != OFFSET_MAX:
            continue
        start, block_id = _claimed_too_much(state, partition)
        cause = (
            f"in the journal of an older release, block {block_id or '(deleted)'} ends beyond the highest offset: started again "
            f"at {start}"
        )
        begun = ev.IncarnationStart(partition.topic, partition.partition, start, partition.incarnation.topic_id)
        # the time of the incarnation before it: a reader has no clock
        apply(state, ev.IncarnationBegun(begun, partition.incarnation.time_ms, cause))
        said.append(f"{partition.tp}: incarnation {partition.incarnation.number} begins at offset {start}: {cause}")
    return tuple(said)


def _claimed_too_much(state: State, partition: Partition) -> tuple[int, str]:
    """Return the start of the last range in the newest incarnation, and the range's block. If the block is deleted, return the
    incarnation's start and ""."""
    incarnation = partition.incarnation
    found = (
        (r.from_offset, block.id)
        for block in state.blocks.values()
        for r in block.meta.ranges
        if (r.tp, r.incarnation, r.until_offset) == (partition.tp, incarnation.number, OFFSET_MAX)
    )
    return min(found, default=(incarnation.start, ""))


class _Correction:
    """``said``: one sentence for each number that was moved within its bounds."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def within(self, type_: inspect.Type, value: Any, at: str) -> Any:
        match type_:
            case inspect.Metadata(type=inspect.IntType() as inner):
                return self._nearest(inner, (type_.extra or {}).get(INSTEAD), value, at)
            case inspect.IntType():
                return self._nearest(type_, None, value, at)
            case inspect.StrType(max_length=longest) if isinstance(value, str) and longest and len(value) > longest:
                self.said.append(f"{at} has {len(value)} characters, of at most {longest}: cut")
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
            if type_.cls is BlockRange and any(made[name] != value[name] for name in ("from", "until", "records")):
                made["records"] = 0
            elif type_.cls is BlockMeta:
                made["records"] = sum(r["records"] for r in made["ranges"])
        return made

    def _nearest(self, type_: inspect.IntType, instead: int | None, value: Any, at: str) -> Any:
        low, high = type_.ge, type_.le
        if not isinstance(value, int) or low is None or high is None or low <= value <= high:
            return value
        corrected = instead if instead is not None else min(max(value, low), high)
        self.said.append(f"{at} is {value}, outside of {low} to {high}: read as {corrected}")
        return corrected


def _member(union: inspect.UnionType, value: Any) -> inspect.Type:
    """Return the union's type of ``value``; of several structs, the one with its tag."""
    if isinstance(value, Mapping):
        for one in union.types:
            if isinstance(one, inspect.StructType) and (one.tag_field is None or value.get(one.tag_field) == one.tag):
                return one
    others = (one for one in union.types if not isinstance(one, inspect.NoneType | inspect.StructType))
    return next(others, inspect.NoneType())
