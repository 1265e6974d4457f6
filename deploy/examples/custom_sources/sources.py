"""Two custom sources: lines of growing files, which can be read again, and lines over TCP, which can't."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from forebay.sources import OffsetGone, Record, ReliableSource, RetryLater, UnreliableSource

#: maximum bytes of one read from a file or a connection; also the maximum length of a line
CHUNK_BYTES = 1_000_000


class Tail(ReliableSource):
    """Follows the files in ``folder`` that match ``pattern``. Each file is a partition, named by the file.

    A record is a line. Its offset is the place of its last byte, the newline, in the file. The position after a record is
    therefore the start of the next line, and reading again is a seek.
    """

    def __init__(self, folder: str, pattern: str = "*.log") -> None:
        self._folder = Path(folder)
        self._pattern = pattern
        self._positions: dict[str, int] = {}
        self._never = threading.Event()

    def partitions(self) -> Sequence[str]:
        try:
            return [path.name for path in self._folder.iterdir() if path.match(self._pattern)]
        except OSError as error:
            raise RetryLater(f"{self._folder}: {error.strerror}") from None

    def open(self, partition: str, offset: int) -> None:
        if offset > self.end_offset(partition):
            raise OffsetGone(partition, f"the file is shorter than {offset} bytes: it was truncated")
        self._positions[partition] = offset

    def poll(self, partitions: Sequence[str], max_records: int, timeout_seconds: float) -> Mapping[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        positions = dict(self._positions)  # a poll that raises changes nothing
        for name in partitions:
            left = max_records - sum(map(len, found.values()))
            records = self._lines(name, positions[name], left) if left else []
            if records:
                found[name] = records
                positions[name] = records[-1].offset + 1
        self._positions = positions
        if not found:
            self._never.wait(timeout_seconds)
        return found

    def _lines(self, name: str, position: int, limit: int) -> list[Record]:
        try:
            with open(self._folder / name, "rb") as file:
                if position > os.fstat(file.fileno()).st_size:
                    raise OffsetGone(name, f"the file is shorter than {position} bytes: it was truncated")
                file.seek(position)
                chunk = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return []  # moved away: partitions() no longer names it
        except OSError as error:
            raise RetryLater(f"{name}: {error.strerror}") from None
        *lines, rest = chunk.split(b"\n", limit)
        if not lines and len(rest) == CHUNK_BYTES:
            raise ValueError(f"{name}: the line at byte {position} is longer than {CHUNK_BYTES} bytes")
        records = []
        for line in lines:
            position += len(line)
            records.append(Record(line, offset=position))
            position += 1
        return records

    def end_offset(self, partition: str) -> int:
        try:
            return os.stat(self._folder / partition).st_size
        except OSError as error:
            raise RetryLater(f"{partition}: {error.strerror}") from None

    def identity(self, partition: str) -> str:
        """Return the inode, by which a new file under an old name is recognized.

        A file that is created immediately after another was deleted may get the same inode. Therefore move files away rather
        than delete them.
        """
        try:
            return f"{os.stat(self._folder / partition).st_ino:x}"
        except OSError as error:
            raise RetryLater(f"{partition}: {error.strerror}") from None

    def close(self) -> None:
        pass


class Lines(UnreliableSource):
    """Listens at ``host`` on ``port`` plus its ordinal, and takes in the lines that clients send.

    If the process is killed, lines that were sent and not accepted yet are lost. Data that must not be lost needs a source
    that can be read again.
    """

    name = "lines"

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._address = (host, port)
        self._selector = selectors.DefaultSelector()
        self._rests: dict[socket.socket, bytes] = {}  # connection → bytes after its last newline
        self._lines: list[Record] = []

    def start(self) -> None:
        host, port = self._address
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port + self.ordinal))
            listener.listen()
        except OSError as error:  # the previous process may still be running
            listener.close()
            raise RetryLater(f"can't listen on {host}:{port + self.ordinal}: {error.strerror}") from None
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def poll(self, max_records: int, timeout_seconds: float) -> list[Record]:
        if not self._lines:
            for key, _ in self._selector.select(timeout_seconds):
                key.data(key.fileobj)
        given, self._lines = self._lines[:max_records], self._lines[max_records:]
        return given

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        self._rests[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(CHUNK_BYTES)
        except OSError:  # reset by the client: all data before it has arrived
            data = b""
        *lines, rest = (self._rests[connection] + data).split(b"\n")
        self._lines += [Record(line) for line in lines]
        self._rests[connection] = rest
        if not data or len(rest) > CHUNK_BYTES:  # a last line without a newline is dropped
            self._selector.unregister(connection)
            del self._rests[connection]
            connection.close()

    def stop(self) -> None:
        for key in list((self._selector.get_map() or {}).values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
