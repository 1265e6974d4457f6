"""Keyed states as observers see them: the versions that the journal names, and the files in their manifests."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from driver.http.observation.lists import Query, page
from driver.journal.state import State
from driver.journal.versions import KeyedVersions, StateVersion
from driver.tracker.requests import Read
from forebay import messages as m
from forebay.model.errors import CorruptionError, NewerVersionError, StoreError
from wal.keyed.files import Manifest, read_manifest
from wal.storage import Storage


@dataclass(frozen=True, slots=True)
class ReadKeyedStates(Read[Mapping[str, KeyedVersions]]):
    """Reads the versions of all keyed states. A stream has few states, and their versions do not change."""

    def read(self, state: State) -> Mapping[str, KeyedVersions]:
        return dict(state.keyed)


class KeyedStates:
    """Answers about keyed states. ``storage``: of the WAL; None without one. Keeps what the newest manifests say. Thread-safe."""

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._known: dict[str, m.StateEntry] = {}  # by path of the manifest, which never changes

    def answer(self, found: Mapping[str, KeyedVersions], query: Query) -> m.StatesAnswer:
        """Return the page. Reads the manifests that it did not read before, so it must not be called in the decision loop."""
        listed = page(sorted(found.items()), query, lambda item: item[0], lambda item: "")
        with self._lock:
            newest = {known.versions[-1].manifest for known in found.values() if known.versions}
            self._known = {path: entry for path, entry in self._known.items() if path in newest}
        return m.StatesAnswer(
            total=listed.total, next=listed.next, states=tuple(self._entry(name, known) for name, known in listed.items)
        )

    def _entry(self, name: str, known: KeyedVersions) -> m.StateEntry:
        if not known.versions:
            return m.StateEntry(name=name, replaced=len(known.replaced), detail="a replay replaces all of its versions")
        entry = self._newest(name, known.versions[-1])
        return msgspec.structs.replace(
            entry,
            versions=len(known.versions),
            oldest_batch_id=known.versions[0].batch_id,
            replaced=len(known.replaced),
        )

    def _newest(self, name: str, version: StateVersion) -> m.StateEntry:
        """Return what the manifest of the version says; without it, the reason."""
        with self._lock:
            entry = self._known.get(version.manifest)
        if entry is not None:
            return entry
        assert self._storage is not None, "only a stream with a WAL has states"
        try:
            entry = described(read_manifest(self._storage, version.manifest, version.sha256))
        except (CorruptionError, NewerVersionError, StoreError) as error:
            return m.StateEntry(name=name, batch_id=version.batch_id, detail=f"its manifest can't be read: {error}")
        with self._lock:
            self._known[version.manifest] = entry
        return entry


def described(manifest: Manifest) -> m.StateEntry:
    """Return what the manifest says of its version."""
    files = [file for shard in manifest.shards for file in shard]
    merged = all(len(shard) <= 1 for shard in manifest.shards)
    return m.StateEntry(
        name=manifest.name,
        key=manifest.key,
        columns=tuple(f"{column.name} {column.type}" for column in manifest.columns),
        shards=len(manifest.shards),
        files=len(files),
        keys_max=sum(file.rows for file in files),
        keys_exact=merged and all(file.oldest_ms > manifest.forgotten_ms for file in files),
        bytes=sum(file.bytes for file in files),
        batch_id=manifest.batch_id,
        updated_ms=max((file.newest_ms for file in files), default=None),
    )
