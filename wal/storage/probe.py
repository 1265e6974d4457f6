"""The probe at start: it tests whether a store of whole objects really creates an object only if absent, and lists it then. Some
stores accept the condition and ignore it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from forebay.model.errors import DeniedError, StoreError, UsageError
from forebay.settings.stores import STORE_KINDS, scheme_of
from wal.storage import SendsParts, Storage

#: creates an object with that path and these bytes only if it does not exist
Put = Callable[[str, bytes], None]

#: threads that create one name at the same time
RACERS = 8


def probe(storage: Storage, stream: str, new_uid: Callable[[], int]) -> None:
    """Verify that of several creators of one name exactly one succeeds. Do nothing on an appendable store.

    The probe creates one name twice, then another from eight threads at the same time, and deletes both. If the store sends large
    objects in parts, it does the same with uploads in parts. ``new_uid``: random numbers for names and contents.

    Raises UsageError if more than one creator succeeded, if a listing lacks a created object, or if the store denies access;
    StoreError.
    """
    if storage.appendable:
        return
    try:
        _probe(storage, stream, new_uid)
    except DeniedError as error:
        credentials = STORE_KINDS[scheme_of(storage.url)].credentials
        # without the object's name: it means nothing to the reader
        raise UsageError(
            f"cannot write to {storage.url}: access denied ({error.reason}); check the credentials ({credentials}) and that "
            "they may put, get, delete and list objects there"
        ) from None


def _probe(storage: Storage, stream: str, new_uid: Callable[[], int]) -> None:
    found = _two_winners(storage, storage.put_new, stream, new_uid)
    if found:
        raise UsageError(
            f"{storage.url} can't be used: this store {found}. Forebay's processes fence each other by objects that are created "
            "only if absent (for S3: PUT with If-None-Match: *); on this store two of them could overwrite each other's records. "
            "Use a store, or a release of it, that honours the condition"
        )
    if isinstance(storage, SendsParts) and storage.sends_parts:
        found = _two_winners(storage, storage.put_new_in_parts, stream, new_uid)
        if found:
            raise UsageError(
                f"{storage.url} can't be used: this store {found} when objects are sent in parts. It honours the condition for "
                "small objects, but ignores it when an upload in parts is completed (CompleteMultipartUpload with "
                "If-None-Match: *). Use a store, or a release of it, that honours it, or set "
                '[storage.s3] part_size = "3GiB", so that no object is sent in parts'
            )


def _two_winners(storage: Storage, put: Put, stream: str, new_uid: Callable[[], int]) -> str:
    """Return how the store let two creators of one name succeed; "" if it did not."""
    name = f"{stream}/probes/{new_uid():016x}"
    twice, race = f"{name}-twice", f"{name}-race"
    try:
        won = [_creates(put, twice, b"%016x" % new_uid()) for _ in range(2)]
        winners = _race(put, race, [b"%016x" % new_uid() for _ in range(RACERS)])
        unlisted = not {twice, race} <= set(storage.list(f"{stream}/probes"))
    finally:
        for path in (twice, race):
            storage.delete(path)
    if won == [True, False] and winners == 1 and unlisted:
        raise UsageError(
            f"{storage.url} can't be used: a listing of this store lacks an object that it has just created. Forebay finds "
            "the segments of WAL and journal by listings. Use a store whose listings are consistent"
        )
    if won == [True, False] and winners == 1:
        return ""
    return (
        "overwrote an object that was to be created only if absent"
        if won[1]
        else f"let {winners} of {RACERS} create one name"
    )


def _creates(put: Put, path: str, data: bytes) -> bool:
    try:
        put(path, data)
    except FileExistsError:
        return False
    return True


def _race(put: Put, path: str, contents: list[bytes]) -> int:
    won: list[bool] = []
    failures: list[Exception] = []
    together = threading.Barrier(len(contents))

    def create(data: bytes) -> None:
        together.wait()
        try:
            won.append(_creates(put, path, data))
        except Exception as error:  # raised by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=create, args=(data,), daemon=True) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failures:
        if not isinstance(error, StoreError):
            raise error
    if failures and not any(won):
        raise failures[0]
    return sum(won)
