"""Settings of the C library's allocator for a service that runs for months."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

#: the main one, which grows by brk(2), and one more
ARENAS_MAX = 2
#: the parameter of mallopt(3), from malloc.h
_M_ARENA_MAX = -8


def limit_arenas(environment: Mapping[str, str] = os.environ) -> bool:
    """Let all threads of this process share ARENAS_MAX arenas of glibc's allocator, and return whether they do.

    By default there are 8 for each core, and a thread takes the next one. Each keeps freed memory for its own threads, at its end
    alone up to 64 MiB (``M_TRIM_THRESHOLD`` in mallopt(3)), so a service grows whenever a further thread handles large blocks.
    Call it before other threads begin. Nothing changes if the environment sets a number, or with another C library.
    """
    if "MALLOC_ARENA_MAX" in environment or "glibc.malloc.arena_max" in environment.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))
