"""Several small blocks in one request to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from forebay.messages.message import Message
from forebay.model.bounds import Text

#: maximum number of blocks in one request, and of bytes in its answer
COPIES_MAX, COPIES_BYTES_MAX = 1_000, 16 << 20
#: header of the answer: for each requested block the bytes that it has in the body, in order; 0: it is not on the host
COPY_SIZES = "forebay-copy-sizes"
#: in place of the bytes of a block that had no room in the answer
LEFT_OUT = -1


class CopiesRequest(Message, frozen=True, kw_only=True):
    """POST /v1/blocks/{stream}. Reads several blocks; the answer is their bytes, one after the other."""

    ids: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=COPIES_MAX)]


def copy_sizes_text(sizes: Sequence[int]) -> str:
    """Return the value of ``COPY_SIZES``."""
    return ",".join(map(str, sizes))


def copy_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in the value of ``COPY_SIZES``; none if it is not valid."""
    try:
        sizes = tuple(map(int, text.split(",")))
    except ValueError:
        return ()
    return sizes if len(sizes) <= COPIES_MAX and all(size >= LEFT_OUT for size in sizes) else ()
