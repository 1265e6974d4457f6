"""The journal's reader accepts every event that the driver writes; otherwise the journal could never be opened again."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, cast, get_args

import msgspec
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from msgspec import inspect

from driver.journal import events as ev
from driver.journal.log.reading import _events_decoder, _state_decoder
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker.requests import FoundPartitions
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import Block, BlockMeta, BlockRange, Gap, Handle, block_id
from tests.support.state.tracked import STREAM, TOPIC, Tracked

EVENTS = get_args(ev.Event)


class Text(str):
    pass


class Kind(Enum):
    ONE = "one"


#: what Python accepts in any field of a struct
FOREIGN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.sampled_from([-(2**63) - 1, -(2**63), -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64]),
    st.floats(),
    st.sampled_from(["", "\ud800", "x" * 1_001, "t" * 250, "\0", Text("t"), Kind.ONE, b"", b"x" * 32, bytearray(b"x")]),
    st.text(max_size=5),
    st.just(()),
    st.just([]),
    st.just({}),
    st.just(object()),
)


def values(type_: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of the type, within its bounds."""
    match type_:
        case inspect.Metadata(type=inner):
            return values(inner)
        case inspect.IntType(ge=low, le=high):
            return st.integers(
                min_value=-(2**63) if low is None else low, max_value=2**64 - 1 if high is None else high
            )
        case inspect.FloatType(ge=low, le=high):
            return st.floats(min_value=low, max_value=high, allow_nan=low is None and high is None)
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType(max_length=longest):
            texts = st.text(max_size=10)
            return texts | st.just("x" * longest) if longest else texts
        case inspect.BytesType(min_length=least, max_length=longest):
            return st.binary(min_size=least or 0, max_size=longest if longest is not None else 40)
        case inspect.NoneType():
            return st.none()
        case inspect.UnionType(types=members):
            return st.one_of([values(member) for member in members])
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(values, items))
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case inspect.StructType(cls=cls):
            return structs(cls)
    raise AssertionError(f"no values of {type_}")


@st.composite
def structs(draw: st.DrawFn, cls: type[Any], foreign: bool = False) -> Any:
    """A ``cls``; ``foreign``: with one field that may be anything. Values whose fields contradict each other are none."""
    special = _SPECIAL.get(cls)
    if special is not None and not foreign:
        return draw(special())
    fields = cast(inspect.StructType, inspect.type_info(cls)).fields
    made = {field.name: draw(values(field.type)) for field in fields}
    if foreign and made:
        made[draw(st.sampled_from(sorted(made)))] = draw(FOREIGN)
    try:
        return cls(**made)
    except (ForebayError, ValueError, TypeError):
        reject()


OFFSETS = st.integers(min_value=0, max_value=2**63 - 2)


@st.composite
def ranges(draw: st.DrawFn, topic: str = "t") -> BlockRange:
    start = draw(OFFSETS)
    until = draw(st.integers(min_value=start + 1, max_value=2**63 - 1))
    gap = draw(st.booleans()) and start > 0
    return BlockRange(
        draw(st.text(max_size=5)), draw(st.integers(0, 2**31 - 1)), draw(st.integers(0, 2**53 - 1)), start, until,
        draw(st.integers(0, min(until - start, 2**30))), draw(st.integers(-1, 2**31 - 1)), draw(st.text(max_size=5)),
        draw(st.integers(0, 2**53 - 1)), draw(st.integers(0, 2**63 - 1)), draw(st.integers(-(2**63), 2**63 - 1)),
        Gap(draw(st.integers(0, start - 1)), start, draw(st.text(max_size=5))) if gap else None,
    )  # fmt: skip


@st.composite
def metas(draw: st.DrawFn) -> BlockMeta:
    held = draw(ranges())
    epoch, sequence = draw(st.integers(0, 2**53 - 1)), draw(st.integers(0, 2**53 - 1))
    return BlockMeta(
        block_id("r1", epoch, sequence), STREAM, "r1", epoch, sequence, (held,), held.records,
        draw(st.integers(-(2**63), 2**63 - 1)), draw(st.text(max_size=5)), draw(st.booleans()),
        draw(st.none() | st.text(max_size=5)), draw(st.sampled_from(cast(Any, [True, False, msgspec.UNSET]))),
        draw(st.just(msgspec.UNSET) | st.binary(min_size=32, max_size=32)),
    )  # fmt: skip


@st.composite
def spans(draw: st.DrawFn) -> OffsetRange:
    start = draw(OFFSETS)
    until = draw(st.integers(min_value=start, max_value=2**63 - 1))
    return OffsetRange(
        draw(st.text(min_size=1, max_size=5)), draw(st.integers(0, 2**31 - 1)), start, until, draw(st.text(max_size=5))
    )


@st.composite
def gaps(draw: st.DrawFn) -> Gap:
    start = draw(OFFSETS)
    return Gap(start, draw(st.integers(start + 1, 2**63 - 1)), draw(st.text(max_size=5)))


#: structs whose fields must fit one another
_SPECIAL: dict[type[Any], Any] = {BlockRange: ranges, BlockMeta: metas, OffsetRange: spans, Gap: gaps}


def read_back(event: ev.Event) -> ev.Event:
    (found,) = _events_decoder.decode(msgspec.msgpack.encode((event,)))
    return found


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_event_within_its_types_is_accepted_and_read_back_as_it_was(cls: type[Any]) -> None:
    @settings(max_examples=15)
    @given(structs(cls))
    def check(event: ev.Event) -> None:
        ev.refuse_unwritable(event)
        found = read_back(event)
        assert found == event or any(isinstance(v, float) and math.isnan(v) for v in msgspec.structs.astuple(event))

    check()


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_event_with_a_foreign_value_is_refused_or_read_back(cls: type[Any]) -> None:
    @settings(max_examples=30)
    @given(structs(cls, foreign=True))
    def check(event: ev.Event) -> None:
        try:
            ev.refuse_unwritable(event)
        except ev.UnwritableEvent:
            return
        read_back(event)

    check()


def _gap(**changed: Any) -> Gap:
    return msgspec.structs.replace(Gap(0, 5, "c"), **changed)


def _block(**changed: Any) -> Block:
    held = BlockRange(TOPIC, 0, 1, 0, 5, 5, -1, "0" * 16, 1)
    meta = BlockMeta("r1-1-1", STREAM, "r1", 1, 1, (held,), 5, 0, "h1")
    return Block(msgspec.structs.replace(meta, **changed), Handle("x", 0, 1, 0), False)


@pytest.mark.parametrize(
    "event",
    [
        ev.PartitionsAdded((ev.IncarnationStart(TOPIC, 0, 5.0),), 0, "custom"),  # type: ignore[arg-type]
        ev.PartitionsAdded((ev.IncarnationStart(TOPIC, True, 5),), 0, "custom"),
        ev.IncarnationBegun(ev.IncarnationStart(TOPIC, 0, 5, leader_epoch=2**31), 0, "custom"),
        ev.GapRecorded(TOPIC, 0, _gap(cause="x" * 1_001), 0),
        ev.BlockAdded(_block(created_ms=1.5)),
        ev.BlockAdded(_block(created_ms=2**63)),
        ev.BlockAdded(_block(key_id="k" * 1_001)),
        ev.BlockAdded(_block(sha256=b"short")),
        ev.ClaimGiven(TOPIC, 0, "r1", 1, 2**53),
        ev.SpansBegun({"t/0": 7.0}, {}, 0, "given"),  # type: ignore[dict-item]
        ev.BatchAllocated(1, 1, 0, (("a", 1),)),  # type: ignore[arg-type]
        ev.JobFailed(1, "o", "e", "p", 1.0, 1, 0, 0),  # type: ignore[arg-type]
    ],
    ids=lambda event: type(event).__name__,
)
def test_event_that_could_be_written_and_not_read_back_is_refused(event: ev.Event) -> None:
    """Python checks no struct's values, and the encoder no bounds."""
    msgspec.msgpack.encode(event)
    with pytest.raises(msgspec.ValidationError):
        read_back(event)
    with pytest.raises(
        ev.UnwritableEvent, match=f"{type(event).__name__} can't be read back from the journal: Expected"
    ):
        ev.refuse_unwritable(event)


def test_refused_event_changes_nothing_and_the_next_one_is_taken() -> None:
    t = Tracked(1)
    starts = (ev.IncarnationStart("new", 0, 5.0),)  # type: ignore[arg-type]
    decision = t.decide(FoundPartitions(starts, t.now_ms, "custom"))
    assert isinstance(decision.refusal, UsageError) and not decision.events
    t.say(FoundPartitions((ev.IncarnationStart("new", 0, 5),), t.now_ms, "custom"))
    again = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(again, read_back(event))
    assert _state_decoder.decode(msgspec.msgpack.encode(t.state)) == again == t.state
