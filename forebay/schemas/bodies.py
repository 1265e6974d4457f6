"""The interface of a format: it decodes bodies to an array, and returns the cause for each that it can't decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from forebay.kafka.registry.client import RegisteredSchema
from forebay.model.errors import ForebayError, UsageError

T = TypeVar("T")

#: columns of a schema with the nested ones; named types within one another can have a billion places
COLUMNS_MAX = 20_000
TOO_MANY_COLUMNS = (
    f"the schema has more than {COLUMNS_MAX} columns, with nested ones; use a smaller schema as the reader's"
)
_CAUSE_LENGTH_MAX = 1_000
#: exceptions of Arrow for a value that does not fit a type
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Bodies(NamedTuple):
    """Encoded records ``data[starts[i]:ends[i]]`` of one writer's schema.

    ``message``: the Protobuf message that a header names; None: each body begins with it.
    """

    data: memoryview
    starts: Sequence[int]
    ends: Sequence[int]
    message: tuple[int, ...] | None = None


class Decoded(NamedTuple):
    """An array with a row for each body. ``causes``: index → why a body can't be decoded; its row is null."""

    array: pa.Array[Any]
    causes: dict[int, str]


class Format(Protocol):
    """One reader's schema. ``type``: the type of a decoded record."""

    type: pa.DataType

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        """Return the decoder for records written with ``schema``. Raises ValueError if such records can't be decoded."""


@contextmanager
def parsing(schema: RegisteredSchema) -> Iterator[None]:
    """Turn what libraries raise for an invalid schema, which are exceptions of many kinds, into UsageError."""
    try:
        yield
    except (ForebayError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(f"cannot parse {schema}: {cause_of(error)}") from None


def cause_of(error: BaseException) -> str:
    """Return the text of ``error``, shortened."""
    return f"{type(error).__name__}: {error}"[:_CAUSE_LENGTH_MAX]


def rows_of(bodies: Bodies, row: Callable[[memoryview], T]) -> tuple[list[T | None], dict[int, str]]:
    """Return ``row`` of each body, or None and the cause if it raises."""
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
    """Return ``make(rows)``. If it raises, retry with halves, down to the rows that cause it, and add these to ``causes``."""
    try:
        return Decoded(make(rows), causes)
    except MemoryError:  # Arrow's is also an ArrowException, and no row is its cause
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
