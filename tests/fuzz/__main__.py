"""``python -m tests.fuzz SEED ATTEMPTS [READER …]``: each reader over mutated bytes, in a process of bounded memory.

A reader with a cost gets fewer attempts. Exits with 1 and names reader and attempt if anything is raised that a reader's
docstring does not name; a crash, a hang or memory beyond the limit ends it otherwise. The same seed makes the same bytes.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
import traceback

import pyarrow as pa

from tests.fuzz.readers import readers

#: what the process may take beyond what it has when it begins, whatever the bytes say; they are a few KB each
MEMORY_BYTES = 512 << 20
#: what it may really touch of that
RESIDENT_BYTES = 128 << 20
#: one attempt takes milliseconds
HANG_SECONDS = 30


def main(seed: str, attempts: int, names: list[str]) -> int:
    everything = readers()
    for reader in everything.values():
        for data in reader.honest:
            reader.read(data)
        for data in reader.refused:
            try:
                reader.read(data)
            except reader.allowed:
                continue
            raise AssertionError(f"not refused: {data[:200]!r}")
    pa.set_memory_pool(pa.system_memory_pool())
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + MEMORY_BYTES, have + MEMORY_BYTES))
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, reader in everything.items():
        if names and name not in names:
            continue
        for number in range(-(-attempts // reader.cost)):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                reader.attempt(random.Random(f"{seed}/{name}/{number}"))
            except BaseException:
                traceback.print_exc()
                print(f"reader {name!r}, attempt {number} of seed {seed}", file=sys.stderr)
                return 1
    faulthandler.cancel_dump_traceback_later()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began) * 1024
    if grown > RESIDENT_BYTES:
        print(f"seed {seed}: {grown} bytes of memory were touched", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
