"""A mounted folder whose disk can't read the second half of any file: the kernel gets EIO, by read and by mapping.

The file system is in a process of its own, which speaks FUSE's protocol with the kernel (``man 4 fuse``). It shows the files of
one folder, read-only. Mounting needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from forebay.process.tether import tethered
from tests.conftest import missing

_HEADER = struct.Struct("=IIQQIIIHH")
_ANSWER = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_INIT = struct.Struct("=IIIIHHIIHHI7I")
_READ = struct.Struct("=QQI")
_MESSAGE_BYTES = 1 << 21
_KEPT_SECONDS = 3600
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def half_readable(source: Path, mount: Path) -> Iterator[None]:
    """Show the files of ``source`` in the existing folder ``mount``. Skips the test where nothing can be mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.getuid():
        missing("/dev/fuse, as root: a file system that a test mounts")
    command = [sys.executable, "-m", "tests.support.faulty.bad_disk", str(source), str(mount)]
    server = subprocess.Popen(tethered(command), stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    try:
        assert server.stdout is not None
        said = server.stdout.readline().decode().strip()
        if said != "mounted":
            missing(f"a mount by FUSE: {said}")
        yield
    finally:
        _libc.umount2(os.fsencode(mount), _MNT_DETACH)
        server.kill()
        server.communicate()


class _Operation(IntEnum):
    """Numbers of ``enum fuse_opcode``."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_UNANSWERED = (_Operation.FORGET, _Operation.INTERRUPT, _Operation.BATCH_FORGET)


class _Disk:
    """Answers the kernel's requests. Node 1 is the folder; a file's node is its place in ``names``, from 2 on."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._names = ["", "", *sorted(path.name for path in source.iterdir())]

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        """Raises OSError with the number for the kernel."""
        match operation:
            case _Operation.INIT:
                return _INIT.pack(7, 31, 0, 0, 16, 12, 1 << 16, 1, 0, 0, 0, *[0] * 7)
            case _Operation.LOOKUP:
                name = body.rstrip(b"\0").decode()
                if name not in self._names[2:]:
                    raise OSError(errno.ENOENT, "")
                node = self._names.index(name)
                return struct.pack("=QQQQII", node, 0, _KEPT_SECONDS, _KEPT_SECONDS, 0, 0) + self._attributes(node)
            case _Operation.GETATTR:
                return struct.pack("=QII", _KEPT_SECONDS, 0, 0) + self._attributes(node)
            case _Operation.OPEN | _Operation.OPENDIR:
                return struct.pack("=QII", 0, 0, 0)
            case _Operation.READ:
                _, offset, size = _READ.unpack_from(body)
                path = self._path(node)
                if offset + size > path.stat().st_size // 2:
                    raise OSError(errno.EIO, "")
                with path.open("rb") as file:
                    return os.pread(file.fileno(), size, offset)
            case _Operation.RELEASE | _Operation.FLUSH | _Operation.RELEASEDIR | _Operation.DESTROY:
                return b""
        raise OSError(errno.ENOSYS, "")

    def _path(self, node: int) -> Path:
        return self._source / self._names[node]

    def _attributes(self, node: int) -> bytes:
        status = self._path(node).stat()
        kind = stat.S_IFDIR | 0o500 if node == 1 else stat.S_IFREG | 0o400
        return _ATTRIBUTES.pack(
            node, status.st_size, status.st_blocks, 0, 0, 0, 0, 0, 0, kind, 1, os.getuid(), os.getgid(), 0, 4096, 0
        )


def _serve(source: Path, mount: Path) -> None:
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if _libc.mount(b"bad_disk", os.fsencode(mount), b"fuse", 0, options.encode()):
        print(os.strerror(ctypes.get_errno()), flush=True)
        return
    print("mounted", flush=True)
    disk = _Disk(source)
    while True:
        try:
            message = os.read(descriptor, _MESSAGE_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.EINTR, errno.ENOENT):  # ENOENT: the request was withdrawn
                continue
            raise
        _, operation, unique, node, *_ = _HEADER.unpack_from(message)
        if operation in _UNANSWERED:
            continue
        try:
            found, code = disk.answer(operation, node, message[_HEADER.size :]), 0
        except OSError as error:
            found, code = b"", -(error.errno or errno.EIO)
        os.write(descriptor, _ANSWER.pack(_ANSWER.size + len(found), code, unique) + found)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
