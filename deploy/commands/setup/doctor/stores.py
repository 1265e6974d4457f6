"""Speed, space and clock of the stores. Everything that is written is deleted again."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from deploy.commands.setup.doctor.findings import Finding
from deploy.commands.setup.validation import STORE_TIMEOUT_SECONDS, is_remote
from forebay.model.errors import ForebayError
from forebay.model.units import Size
from forebay.process.clock import Clock
from forebay.settings.schema import Settings
from forebay.settings.stores import local_path
from forebay.settings.toml_text import toml_text

#: syncs, and requests to a remote store, that are timed
SYNCS, REQUESTS = 20, 5
SMALL_BYTES, LARGE_BYTES = 4_096, 16_000_000
#: a slower sync, or request, makes each block wait longer than the default receiver.block_interval
SYNC_SECONDS_MAX, REQUEST_SECONDS_MAX = 0.1, 0.5
#: difference of clocks that needs action; a store's times may have a resolution of one second
CLOCK_SECONDS_MAX = 5.0
_AREA = "stores"


def check_stores(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """Yield the findings about WAL, journal and blocks. Stores at the same URL, or on the same file system, are timed once."""
    places = [("journal", settings.driver.journal), ("blocks", settings.agent.blocks)]
    if settings.has_wal:
        places.insert(0, ("wal", settings.wal.url))
    timed: set[object] = set()
    for name, place in places:
        try:
            if is_remote(place):
                yield from _remote(name, place, settings, clock) if place not in timed else ()
                timed.add(place)
            else:
                folder = _existing(local_path(place) or place)
                yield _space(name, folder, settings)
                device = folder.stat().st_dev
                if device not in timed:
                    yield _creates_once(name, folder)
                    yield _sync_speed(name, folder, clock)
                timed.add(device)
        except (OSError, ForebayError) as error:
            step = "see the finding about writing it above"
            yield Finding(_AREA, f"{name}: speed", "unknown", f"{place} could not be examined: {error}", step)


def _existing(path: str) -> Path:
    """Return the nearest folder at or above ``path`` that exists: nothing is created that a service would then not own."""
    folder = Path(path)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _space(name: str, folder: Path, settings: Settings) -> Finding:
    usage = shutil.disk_usage(folder)
    reserve = {"wal": settings.wal.reserve, "journal": settings.driver.journal_reserve}.get(name, Size(0))
    text = f"{_size(usage.free)} of {_size(usage.total)} free at {folder}"
    if usage.free <= reserve:
        key = "wal.reserve" if name == "wal" else "driver.journal_reserve"
        step = f"free space, or lower {key} ({toml_text(reserve)}): below it nothing new is taken in"
        return Finding(_AREA, f"{name}: space", "wrong", text, step)
    wanted = settings.agent.quota if name == "blocks" else settings.wal.retention_free if name == "wal" else Size(0)
    if usage.free < wanted:
        key = "agent.quota" if name == "blocks" else "wal.retention_free"
        step = f"free space, or lower {key} ({toml_text(wanted)})"
        return Finding(_AREA, f"{name}: space", "note", text, step)
    return Finding(_AREA, f"{name}: space", "fine", text)


def _creates_once(name: str, folder: Path) -> Finding:
    """Check that the file system creates a name only if it is absent, by which processes fence each other."""
    from wal.storage import open_storage

    with tempfile.TemporaryDirectory(dir=folder, prefix=".forebay-doctor-") as own:
        storage = open_storage(f"file://{own}")
        storage.put_new("probe", b"first")
        try:
            storage.put_new("probe", b"second")
        except FileExistsError:
            return Finding(_AREA, f"{name}: create-if-absent", "fine", f"holds at {folder}")
    step = "use a file system with hard links and exclusive creation, such as ext4, XFS or NFS 4"
    return Finding(_AREA, f"{name}: create-if-absent", "wrong", f"{folder} let two writers create one name", step)


def _sync_speed(name: str, folder: Path, clock: Clock) -> Finding:
    small, large = os.urandom(SMALL_BYTES), os.urandom(LARGE_BYTES)
    syncs = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            began = clock.monotonic()
            file.write(small)
            os.fdatasync(file.fileno())
            syncs.append(clock.monotonic() - began)
        began = clock.monotonic()
        file.write(large)
        os.fdatasync(file.fileno())
        took = max(clock.monotonic() - began, 1e-6)
    text = (
        f"a sync at {folder} takes {median(syncs) * 1000:.1f} ms (slowest of {SYNCS}: {max(syncs) * 1000:.1f} ms), writing "
        f"with sync {_size(round(LARGE_BYTES / took))}/s"
    )
    if median(syncs) > SYNC_SECONDS_MAX:
        return Finding(_AREA, f"{name}: sync", "note", text, "use a faster disk: each block waits for one sync")
    return Finding(_AREA, f"{name}: sync", "fine", text)


def _remote(name: str, url: str, settings: Settings, clock: Clock) -> Iterator[Finding]:
    from wal.storage import DatesObjects, open_storage, tried_for

    storage = tried_for(open_storage(url, settings.storage), STORE_TIMEOUT_SECONDS)
    prefix = f"{settings.stream}/probes/{secrets.token_hex(8)}"
    writes, reads = [], []
    ahead: float | None = None
    names = [f"{prefix}-{number}" for number in range(REQUESTS)]
    try:
        for path in names:
            data = os.urandom(SMALL_BYTES)
            began = clock.monotonic()
            storage.put_new(path, data)
            writes.append(clock.monotonic() - began)
            began = clock.monotonic()
            storage.read(path)
            reads.append(clock.monotonic() - began)
        if isinstance(storage, DatesObjects):
            written = storage.written_seconds(names[-1])
            ahead = None if written is None else written - clock.wall_ms() / 1000
    finally:
        for path in names:
            storage.delete(path)
    text = f"{url}: a write takes {median(writes) * 1000:.0f} ms, a read {median(reads) * 1000:.0f} ms; create-if-absent holds"
    if median(writes) > REQUEST_SECONDS_MAX:
        step = "use a store nearer to the receivers: each block waits for one write"
        yield Finding(_AREA, f"{name}: latency", "note", text, step)
    else:
        yield Finding(_AREA, f"{name}: latency", "fine", text)
    if ahead is not None:
        yield clock_finding(_AREA, f"{name}: clock", "the store's clock", ahead)


def clock_finding(area: str, name: str, whose: str, ahead_seconds: float) -> Finding:
    """Return the finding about a clock that is ``ahead_seconds`` ahead of this machine's (negative: behind)."""
    text = f"{whose} is {abs(ahead_seconds):.1f} s {'ahead of' if ahead_seconds > 0 else 'behind'} this machine's"
    if abs(ahead_seconds) > CLOCK_SECONDS_MAX:
        return Finding(area, name, "wrong", text, "set both clocks by NTP, as in `timedatectl set-ntp true`")
    return Finding(area, name, "fine", text)


def _size(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)
