"""Mapping of files into memory, without the risk that a page that the disk can't read ends the process (SIGBUS).

The kernel reads all pages when the file is mapped, and reports one that it can't read as an error. It may drop such pages later
for lack of memory, and read them again when they are used. If the disk fails between these two reads, the process still ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

#: MADV_POPULATE_READ
_POPULATE_READ = 22
_libc = ctypes.CDLL(None, use_errno=True)


def map_present(path: str | Path) -> Any:
    """Return the file's bytes, mapped into memory, after the kernel has read all of them.

    Raises OSError if the disk can't read a page; an access to such a page would otherwise end the process (SIGBUS). On kernels
    before 5.14, it reads the file into memory instead.
    """
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
    try:
        make_present(data)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return Path(path).read_bytes()
    return data


def make_present(mapped: pa.Buffer) -> None:
    """Read all pages of a mapping. Raises OSError: EIO if a page can't be read, EINVAL if the kernel can't say so."""
    if mapped.size and _libc.madvise(ctypes.c_void_p(mapped.address), ctypes.c_size_t(mapped.size), _POPULATE_READ):
        code = ctypes.get_errno()
        code = errno.EIO if code == errno.EFAULT else code
        raise OSError(code, os.strerror(code))
