"""Reading of several blocks for one answer."""

from __future__ import annotations

import os
from collections.abc import Sequence

from executor_agent.store import BlockStore
from forebay.messages import COPIES_BYTES_MAX, LEFT_OUT
from forebay.model.errors import StoreError


def read_copies(store: BlockStore, stream: str, block_ids: Sequence[str]) -> tuple[list[int], bytes]:
    """Return the size of each block, 0 if it is not on this host, and the bytes of all of them, in order.

    A block for which ``COPIES_BYTES_MAX`` leaves no room has ``LEFT_OUT`` as its size. Raises ValueError for names that no
    stream or block can have, StoreError.
    """
    sizes: list[int] = []
    parts: list[bytes] = []
    room = COPIES_BYTES_MAX
    for block_id in block_ids:
        data = _read(store, stream, block_id, room)
        sizes.append(LEFT_OUT if data is None else len(data))
        if data:
            parts.append(data)
            room -= len(data)
    return sizes, b"".join(parts)


def _read(store: BlockStore, stream: str, block_id: str, room: int) -> bytes | None:
    """Return the block's bytes, none if it is not on this host; None if it has more than ``room``."""
    try:
        descriptor = store.read(stream, block_id)
    except FileNotFoundError:
        return b""
    try:
        if os.fstat(descriptor).st_size > room:
            return None
        return os.read(descriptor, room)
    except OSError as error:
        raise StoreError(f"cannot read block {stream}/{block_id}: {error.strerror}") from None
    finally:
        os.close(descriptor)
