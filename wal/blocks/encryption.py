"""Encryption of block payloads at rest, by AES-256-GCM. The keys are in a file or the environment; each frame has its key's id.

An encrypted payload is ``nonce (12 bytes) ‖ ciphertext ‖ tag (16 bytes)``. The stream and the block's id are authenticated with
it, so a payload under another block's metadata can't be decrypted. Metadata is not encrypted: offsets, topics, digests, and the
id of the key. Checksums are over the encrypted bytes, so damage is found without a key.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from forebay.model.errors import CorruptionError, MissingKeyError, SettingsError
from forebay.model.identifiers import NAME_RULE, check_name
from forebay.model.values import BlockMeta
from forebay.process.secret_file import read_secret, secret_path

#: the keys themselves, as in the file, instead of ``wal.key_file``
KEYS_VARIABLE = "FOREBAY_WAL_KEYS"
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
_MAKE_ONE = "make one with `openssl rand -base64 32`"


class KeyRing:
    """Keys by id. The first key encrypts; every key decrypts. Its representation shows only ids."""

    __slots__ = ("_ciphers", "_nonce", "current")

    def __init__(self, keys: Mapping[str, bytes], nonce: Callable[[], bytes] = lambda: os.urandom(NONCE_BYTES)) -> None:
        """Make a ring of ``keys``: at least one, of 32 bytes each.

        ``nonce`` must never return the same 12 bytes twice for one key; random nonces are safe for 2**32 blocks.
        """
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._nonce = nonce
        self.current = next(iter(keys))

    def __repr__(self) -> str:
        return f"<KeyRing: {', '.join(self._ciphers)}>"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._ciphers

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._ciphers)

    def encrypt(self, plain: Any, bound: bytes) -> pa.Buffer:
        """Return ``plain`` encrypted by the current key. ``bound``: authenticated with it; decryption needs the same bytes."""
        data = memoryview(plain).cast("B")
        sealed = pa.allocate_buffer(NONCE_BYTES + len(data) + TAG_BYTES)
        target = memoryview(sealed).cast("B")
        target[:NONCE_BYTES] = nonce = self._nonce()
        self._ciphers[self.current].encrypt_into(nonce, data, bound, target[NONCE_BYTES:])
        return sealed

    def seal(self, meta: BlockMeta, payload: Any) -> tuple[BlockMeta, pa.Buffer]:
        """Return the block with its payload encrypted by the current key, and metadata that name this key."""
        sealed = self.encrypt(payload, _bound_to(meta))
        return msgspec.structs.replace(meta, key_id=self.current), sealed

    def open(self, meta: BlockMeta, payload: Any, where: str) -> pa.Buffer:
        """Return the decrypted payload. ``where``: names the copy in errors. Raises MissingKeyError, CorruptionError."""
        assert meta.key_id is not None, "a payload that is not encrypted needs no key"
        return self.decrypt_with(self, meta.key_id, payload, _bound_to(meta), what=f"block {meta.id}", where=where)

    @staticmethod
    def decrypt_with(
        keys: KeyRing | None, key_id: str, sealed: Any, bound: bytes, *, what: str, where: str
    ) -> pa.Buffer:
        """Return the bytes that :meth:`encrypt` encrypted with key ``key_id``.

        ``keys``: None: none are configured. ``what``, ``where``: name the content and the copy in errors. Raises
        MissingKeyError, CorruptionError.
        """
        if keys is None:
            raise _missing(what, key_id, "no keys are configured")
        cipher = keys._ciphers.get(key_id)
        if cipher is None:
            raise _missing(what, key_id, f"the configured keys are {', '.join(map(repr, keys._ciphers))}")
        data = memoryview(sealed).cast("B")
        if len(data) < NONCE_BYTES + TAG_BYTES:
            raise CorruptionError(where, 0, f"{what}: {len(data)} bytes are too few for an encrypted payload")
        plain = pa.allocate_buffer(len(data) - NONCE_BYTES - TAG_BYTES)
        try:
            cipher.decrypt_into(data[:NONCE_BYTES], data[NONCE_BYTES:], bound, memoryview(plain).cast("B"))
        except InvalidTag:
            raise CorruptionError(
                where,
                0,
                f"{what}: its payload can't be decrypted: the payload was changed, or the bytes of key {key_id!r} were",
            ) from None
        return plain


def plain_payload(meta: BlockMeta, payload: Any, keys: KeyRing | None, where: str) -> Any:
    """Return the payload in Arrow's format, decrypted if it is encrypted. Raises MissingKeyError, CorruptionError."""
    if meta.key_id is None:
        return payload
    return KeyRing.decrypt_with(keys, meta.key_id, payload, _bound_to(meta), what=f"block {meta.id}", where=where)


def load_keys(key_file: str | None, environment: Mapping[str, str] | None = None) -> KeyRing | None:
    """Return the keys in the environment's FOREBAY_WAL_KEYS, otherwise in ``key_file``; None if neither is set.

    One key per line: its id and the base64 of its 32 bytes. Empty lines and lines that begin with ``#`` are ignored. The first
    key encrypts. Raises SettingsError, which never shows a key.
    """
    text = (os.environ if environment is None else environment).get(KEYS_VARIABLE, "")
    if text.strip():
        return KeyRing(_parse(text, KEYS_VARIABLE))
    if key_file is None:
        return None
    path = secret_path("wal.key_file", key_file, environment)
    text = read_secret("wal.key_file", path)
    return KeyRing(_parse(text, f"wal.key_file: {path}"))


def _parse(text: str, source: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        where = f"{source}, line {number}"
        if len(parts) != 2:
            raise SettingsError(f"{where}: write a key's id, a space, and the base64 of its {KEY_BYTES} bytes")
        key_id, written = parts
        try:
            check_name("key id", key_id)
        except ValueError:
            # not shown: without an id, the first word may be the key itself
            raise SettingsError(f"{where}: the id of a key: {NAME_RULE}") from None
        if key_id in keys:
            raise SettingsError(f"{where}: the key id {key_id!r} is used twice: give each key a different id")
        try:
            key = base64.b64decode(written, validate=True)
        except (binascii.Error, ValueError):
            raise SettingsError(f"{where}: key {key_id!r} is not valid base64: {_MAKE_ONE}") from None
        if len(key) != KEY_BYTES:
            raise SettingsError(f"{where}: key {key_id!r} has {len(key)} bytes, not {KEY_BYTES}: {_MAKE_ONE}")
        keys[key_id] = key
    if not keys:
        raise SettingsError(f"{source} has no key: {_MAKE_ONE}, and write it after an id of your choice")
    return keys


def _missing(what: str, key_id: str, reason: str) -> MissingKeyError:
    return MissingKeyError(
        f"{what} is encrypted with key {key_id!r}, but {reason}: "
        f"put the key's line back into wal.key_file (or {KEYS_VARIABLE}) of every process that reads it"
    )


def _bound_to(meta: BlockMeta) -> bytes:
    return f"{meta.stream}\0{meta.id}".encode()
