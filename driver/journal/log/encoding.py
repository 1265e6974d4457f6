"""The bytes of a state, for a snapshot and for a snapshot copy.

The blocks of a large state are most of it. They are encoded in parts, so that all their bytes are never in memory at the same
time. While a part is encoded, the interpreter runs no other thread. So for a copy the decision loop only copies references to the
blocks, which never change, and another thread encodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

import msgspec

from driver.journal.events import ReplayedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch
from forebay.model.values import Block
from wal.segments.payload import Payload

#: blocks that are encoded together; the interpreter can change the thread between two such parts
TOGETHER = 1_000

_encoder = msgspec.msgpack.Encoder()
#: a map's length in msgpack, as 4 bytes
_MAP32 = b"\xdf"
#: the fields of a state, in order, and their names in msgpack
_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(State)}


@dataclass(frozen=True, slots=True)
class EncodedState:
    """The state after event ``next - 1``. ``actions``: as :func:`has_actions`. Does not change with the state."""

    next: int
    actions: bool
    _before: tuple[bytes, ...]
    _blocks: Mapping[str, Block]
    _after: tuple[bytes, ...]

    @classmethod
    def of(cls, state: State) -> EncodedState:
        """Encode all but the blocks, which never change. Called in the decision loop."""
        names = list(_NAMES)
        at = names.index("blocks")
        before, after = (tuple(_fields(state, part)) for part in (names[:at], names[at + 1 :]))
        head = _MAP32 + len(names).to_bytes(4, "big")
        return cls(state.events, has_actions(state), (head, *before), dict(state.blocks), after)

    def payload(self) -> Payload:
        """Return the msgpack of the state. It is never in memory as a whole if it is large. Slow for many blocks."""
        return Payload.made_by(self._parts)

    def _parts(self) -> Iterator[bytes]:
        yield b"".join(self._before)
        yield _encoder.encode("blocks") + _MAP32 + len(self._blocks).to_bytes(4, "big")
        items = iter(self._blocks.items())
        while some := list(islice(items, TOGETHER)):
            yield b"".join(map(_encoder.encode, chain.from_iterable(some)))
        yield from self._after


def _fields(state: State, names: list[str]) -> Iterator[bytes]:
    return (_encoder.encode(_NAMES[name]) + _encoder.encode(getattr(state, name)) for name in names)


def has_actions(state: State) -> bool:
    """Return whether the state has a pause, or a skipped batch that is not only shown. A release that does not know them would
    ignore them."""
    batches: Iterable[Batch | ReplayedBatch] = chain(
        state.batches.values(), state.replaying.values(), state.replay_window.values()
    )
    return state.pause is not None or any(batch.skipped for batch in batches)
