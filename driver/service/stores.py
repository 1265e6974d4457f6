"""The stores of the journal and of the WAL."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from forebay.settings.schema import Settings
from wal.storage import Storage, open_storage
from wal.storage.probe import probe


@dataclass(frozen=True, slots=True)
class Stores:
    """``wal``: None in a stream without a WAL."""

    journal: Storage
    wal: Storage | None

    @classmethod
    def open(cls, settings: Settings) -> Stores:
        """Open both stores. Raises StoreError, SettingsError."""
        journal = open_storage(settings.driver.journal, settings.storage)
        wal = open_storage(settings.wal.url, settings.storage) if settings.has_wal else None
        return cls(journal, wal)

    def check(self, stream: str) -> None:
        """Write, read and delete an object in each store. Raises StoreError if a store can't do what Forebay needs."""
        for _, storage in self:
            probe(storage, stream, lambda: secrets.randbits(64))

    def __iter__(self) -> Iterator[tuple[str, Storage]]:
        """Iterate over the stores and their names."""
        yield "journal", self.journal
        if self.wal is not None:
            yield "wal", self.wal

    @property
    def requests(self) -> dict[str, int]:
        """Numbers of requests of this process to remote stores, by store and kind; {} if the stores are local."""
        return {f"{name}_{kind}": count for name, storage in self for kind, count in storage.requests.items()}
