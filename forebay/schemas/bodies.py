"""The seam between a column and a format: bodies in, an array and what could not be decoded out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from forebay.kafka.registry.client import RegisteredSchema

T = TypeVar("T")

_CAUSE_LENGTH_MAX = 1_000
#: what Arrow raises for a value that is none of a type
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Bodies(NamedTuple):
    """Of one writer's schema: ``data[starts[i]:ends[i]]``. ``message``: of Protobuf, if a header says it; else it stands before
    each body."""

    data: memoryview
    starts: Sequence[int]
    ends: Sequence[int]
    message: tuple[int, ...] | None = None


class Decoded(NamedTuple):
    """A row for each body, null where ``causes`` says by its index why there is none."""

    array: pa.Array[Any]
    causes: dict[int, str]


class Format(Protocol):
    """One reader's schema. ``type``: what each record becomes."""

    type: pa.DataType

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        """For records that were written by ``schema``. Raises ValueError if no such record can be read."""


def cause_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_CAUSE_LENGTH_MAX]


def rows_of(bodies: Bodies, row: Callable[[memoryview], T]) -> tuple[list[T | None], dict[int, str]]:
    """``row`` of each body; None where it raised."""
    rows: list[T | None] = []
    causes: dict[int, str] = {}
    for index, (start, end) in enumerate(zip(bodies.starts, bodies.ends, strict=True)):
        try:
            rows.append(row(bodies.data[start:end]))
        except MemoryError:
            raise
        except Exception as error:
            causes[index] = cause_of(error)
            rows.append(None)
    return rows, causes


def built(
    rows: Sequence[T | None], causes: dict[int, str], make: Callable[[Sequence[T | None]], pa.Array[Any]]
) -> Decoded:
    """``make`` of ``rows``; where it raises, halves are tried, down to the row that is to blame. Adds to ``causes``."""
    try:
        return Decoded(make(rows), causes)
    except MemoryError:  # Arrow's is an ArrowException too, and no row is to blame
        raise
    except _UNFIT as error:
        if len(rows) == 1:
            causes[0] = cause_of(error)
            return Decoded(make([None]), causes)
    half = len(rows) // 2
    first, second = (built(part, {}, make) for part in (rows[:half], rows[half:]))
    causes.update(first.causes)
    causes.update({half + index: cause for index, cause in second.causes.items()})
    return Decoded(pa.concat_arrays([first.array, second.array]), causes)
