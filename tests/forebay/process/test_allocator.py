"""What a service keeps of the memory that its threads have freed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from forebay.process.allocator import ARENAS_MAX, limit_arenas

THREADS = 8

#: threads that use the allocator at the same time; prints its number of arenas, by malloc_info(3)
_PROGRAM = f"""
import ctypes, sys, threading
from forebay.process.allocator import limit_arenas

if sys.argv[1] == "service":
    limit_arenas()
ready = threading.Barrier({THREADS})

def use():
    blocks = [bytes(1000) for _ in range(100)]
    ready.wait()
    assert len(blocks) == 100

threads = [threading.Thread(target=use) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def arenas(process: str, environment: Mapping[str, str] | None = None) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, process],
        env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.count("<heap nr=")


def test_threads_of_a_service_share_few_arenas() -> None:
    assert arenas("service") <= ARENAS_MAX


def test_threads_of_another_process_do_not() -> None:
    """Without this, the test above would show nothing."""
    assert arenas("other") > ARENAS_MAX


def test_environment_wins() -> None:
    assert arenas("service", {"MALLOC_ARENA_MAX": "5"}) == 5


@pytest.mark.parametrize(
    "environment", [{"MALLOC_ARENA_MAX": "5"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=5:glibc.pthread.rseq=0"}]
)
def test_number_of_the_environment_is_left_alone(environment: Mapping[str, str]) -> None:
    assert not limit_arenas(environment)
