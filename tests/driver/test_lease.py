"""The lease: a courtesy between drivers."""

from __future__ import annotations

import threading

from driver.lease import LeaseKeeper, read_lease
from forebay.clock import SystemClock
from forebay.errors import StoreError
from wal.storage import MemoryStorage


class Away(MemoryStorage):
    """Refuses the first reads after ``fail``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.failures = 0
        self.failed = threading.Event()

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self.failures:
            self.failures -= 1
            self.failed.set()
            raise StoreError("the store is away")
        return super().read(path, offset, length)


def test_a_store_that_was_away_does_not_end_the_renewal() -> None:
    """Else a driver at work would look like one that is gone."""
    storage = Away("memory://lease")
    keeper = LeaseKeeper(storage, "s", 1, "me", "", 0.03, SystemClock())
    keeper.start()
    storage.failures = 1
    assert storage.failed.wait(30)
    before = read_lease(storage, "s")
    assert before is not None
    for _ in range(1000):
        now = read_lease(storage, "s")
        assert now is not None
        if now.beat > before.beat:
            break
        threading.Event().wait(0.02)
    keeper.stop()
    assert now.beat > before.beat
