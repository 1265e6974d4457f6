"""What the machine can do: memory, checksums and disk, with which the bytes that a receiver touches can be compared.

One thread, buffers of 512 MiB, which no cache holds. A copy by NumPy and the three passes over a block's bytes (XXH3-64, SHA-256
and CRC-32C, by the libraries that a receiver uses) are divided by processor time, so other processes affect them less. Writes
are divided by time on the clock: groups of 16 MiB, each with ``fdatasync``, through the page cache and as a receiver writes the
WAL (``wal.storage.direct_writes``). On a file system without direct writes both are the same.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.measured import Measured, figure
from benchmarks.setup import Setup
from wal.segments.payload import checksum
from wal.storage.direct_writes import DirectWrites

BYTES = 512 << 20
#: bytes of one group, after which the file is synced; a multiple of the blocks of direct writes
GROUP_BYTES = 16 << 20


def measure(setup: Setup) -> Iterator[Measured]:
    size = max(1, int(BYTES * setup.scale) // GROUP_BYTES) * GROUP_BYTES
    numbers = np.random.default_rng(7).integers(0, 256, size, np.uint8)
    copied = numbers.copy()  # the kernel gives its pages now, not in the first run
    data: Any = numbers.data  # NumPy's types do not say that an array is a buffer
    passes: dict[str, Callable[[], object]] = {
        "a copy in memory": lambda: np.copyto(copied, numbers),
        "XXH3-64": lambda: xxhash.xxh3_64_intdigest(data),
        "SHA-256": lambda: hashlib.sha256(data).digest(),
        "CRC-32C": lambda: checksum((data,)),
    }
    rates: dict[str, list[float]] = {name: [] for name in passes}
    writes: dict[str, list[float]] = {"writes through the page cache, synced": [], "direct writes, synced": []}
    for _ in range(setup.runs):
        for name, run in passes.items():
            begun = time.thread_time()
            run()
            rates[name].append(size / 1e6 / (time.thread_time() - begun))
        with setup.folder() as folder:
            for (name, found), is_direct in zip(writes.items(), (False, True), strict=True):
                found.append(size / 1e6 / _write_seconds(folder / name, data, is_direct))
    for name, found in {**rates, **writes}.items():
        yield figure("machine", name, found, "MB/s")


def _write_seconds(path: Path, data: memoryview, is_direct: bool) -> float:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    direct = DirectWrites(descriptor)
    try:
        begun = time.monotonic()
        for begin in range(0, len(data), GROUP_BYTES):
            group = data[begin : begin + GROUP_BYTES]
            if is_direct:
                direct.append(group)
                direct.finish()
            else:
                while group:
                    group = group[os.write(descriptor, group) :]
            os.fdatasync(descriptor)
        return time.monotonic() - begun
    finally:
        direct.close()
        os.close(descriptor)
