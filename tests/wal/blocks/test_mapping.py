"""A page of a mapped file that the kernel can't read is an error of the read, and does not end the process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.model.errors import StoreError
from tests.support.state.rows import block, filler
from wal.blocks import mapping, read_local
from wal.blocks.local_copies import MAPPED_BYTES_MIN
from wal.blocks.local_writing import write_local

_BYTES = 4 * MAPPED_BYTES_MIN
#: maps a file, loses the second half of it, and uses the bytes; argv: the file, and what is done before the bytes are used
_USES_LOST_PAGES = """
import os, sys
import pyarrow as pa
from wal.blocks.mapping import make_present
with pa.memory_map(sys.argv[1]) as file:
    data = file.read_buffer()
os.truncate(sys.argv[1], data.size // 2)
if sys.argv[2] == "present":
    try:
        make_present(data)
    except OSError as error:
        sys.exit(error.errno)
data.to_pybytes()
"""


@pytest.mark.parametrize(("before", "code"), [("nothing", -signal.SIGBUS), ("present", errno.EIO)])
def test_lost_page_is_an_error_if_pages_are_made_present_and_else_ends_the_process(
    tmp_path: Path, before: str, code: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(_BYTES))
    command = [sys.executable, "-c", _USES_LOST_PAGES, str(path), before]
    assert subprocess.run(command, check=False, timeout=60).returncode == code


def test_large_copy_with_a_page_that_cannot_be_read_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_local(tmp_path, *block({("a", 0): filler(MAPPED_BYTES_MIN)}))
    assert path.stat().st_size > MAPPED_BYTES_MIN
    make_present = mapping.make_present

    def lose_pages(mapped: pa.Buffer) -> None:
        os.truncate(path, MAPPED_BYTES_MIN // 2)
        make_present(mapped)

    monkeypatch.setattr(mapping, "make_present", lose_pages)
    with pytest.raises(StoreError, match=r"can't be read: .*Input/output error"):
        read_local(path)


def test_large_copy_is_read_where_the_kernel_cannot_make_pages_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta, payload = block({("a", 0): filler(MAPPED_BYTES_MIN)})
    path = write_local(tmp_path, meta, payload)

    def old_kernel(mapped: pa.Buffer) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(mapping, "make_present", old_kernel)
    stored = read_local(path)
    assert stored.meta == meta
    assert stored.payload.to_pybytes() == payload.to_pybytes()
