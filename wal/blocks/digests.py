"""The SHA-256 of a block's payload: the journal has it, and readers compare the payload that they read with it.

A frame's CRC-32C finds accidental damage only: with four chosen bytes any payload matches a given CRC. The SHA-256 finds
forgery: a process that stores or sends a copy can't make another payload that matches the journal's. A range's digest
(``forebay.model.records``) is over the records, not over these bytes, and is not cryptographic.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.model.errors import CorruptionError
from forebay.model.values import BlockMeta
from wal.segments.payload import buffers

if TYPE_CHECKING:
    from wal.blocks.encryption import KeyRing


def completed(meta: BlockMeta, payload: Any, keys: KeyRing | None) -> tuple[BlockMeta, Any]:
    """Return a new block as it is stored: ``payload``, encrypted if there are ``keys``, and ``meta`` with its key and SHA-256.

    ``payload``: one bytes-like object or a list of them.
    """
    meta = msgspec.structs.replace(meta, key_id=None)
    if keys is not None:
        meta, payload = keys.seal(meta, b"".join(payload) if isinstance(payload, list) else payload)
    digest = hashlib.sha256()
    for part in buffers(payload):
        digest.update(part)
    return msgspec.structs.replace(meta, sha256=digest.digest()), payload


def fits(sha256: bytes | msgspec.UnsetType, payload: Any) -> bool:
    """Return whether ``payload``, one bytes-like object, has the SHA-256 that the journal names. If the journal names none, every
    payload fits."""
    return sha256 is msgspec.UNSET or hashlib.sha256(payload).digest() == sha256


def check_digest(sha256: bytes | msgspec.UnsetType, payload: Any, where: str) -> None:
    """Raise CorruptionError, which names ``where``, if the journal has a SHA-256 and ``payload`` has another one."""
    if not fits(sha256, payload):
        raise CorruptionError(where, 0, "the block's SHA-256 is not the one that the journal names")
