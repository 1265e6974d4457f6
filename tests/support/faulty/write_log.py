"""A host's disk, rebuilt from the log of its processes' writes as a power loss at any moment would leave it.

:func:`read_log` reads what ``shim.c`` wrote. :class:`Disk` applies it record by record and knows at each moment which bytes and
names a sync has made durable. :meth:`Disk.after_power_loss` returns the files that a power loss leaves now, for a
:class:`Loss`, which says how much of the rest is kept.

A sync of a file makes its bytes durable and no name; a sync of a folder makes its names durable, also those of removed files,
and no bytes. Names that are not durable are kept in the order of their operations, folder by folder. POSIX promises no more, and
real file systems lose less.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeAlias

_HEAD: Final = struct.Struct("=c3xHHIIQQQ")
Node: TypeAlias = "File | Folder"


class Record(NamedTuple):
    """One operation. ``kind``: C(reate), W(rite), T(runcate), S(ync begins), E (sync ends), R(ename), L(ink), U(nlink), M(kdir),
    D (rmdir) or N (bytes sent to another process). ``path``, ``other``: relative to the root."""

    kind: str
    path: str
    other: str
    pid: int
    inode: int
    offset: int
    data: bytes


def read_log(log: Path, root: Path) -> list[Record]:
    """Return the records in their order. A record that its process did not finish, because it was killed, is left out."""
    content = log.read_bytes()
    base = os.path.realpath(root)
    found: list[Record] = []
    at = 0
    while at + _HEAD.size <= len(content):
        kind, path_bytes, other_bytes, pid, _, inode, offset, length = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        path = os.path.relpath(os.fsdecode(content[at : at + path_bytes]), base) if path_bytes else ""
        at += path_bytes
        other = os.path.relpath(os.fsdecode(content[at : at + other_bytes]), base) if other_bytes else ""
        at += other_bytes
        found.append(Record(kind.decode(), path, other, pid, inode, offset, content[at : at + length]))
        at += length
    return found


@dataclass(slots=True, eq=False)
class File:
    """``durable``: bytes that survive. ``pending``: later writes (offset, data) and truncations (length, None), in order.
    ``synced``: number of operations that ``durable`` has."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    synced: int = 0

    @property
    def operations(self) -> int:
        return self.synced + len(self.pending)

    def sync(self, operations: int) -> None:
        count = max(0, operations - self.synced)
        self.durable = self.content(count)
        del self.pending[:count]
        self.synced += count

    def content(self, count: int, torn: Random | None = None) -> bytearray:
        """Return the bytes with the first ``count`` pending operations; of the next write, ``torn`` keeps a part."""
        data = bytearray(self.durable)
        for place, part in self.pending[:count]:
            _apply(data, place, part)
        if torn is not None and count < len(self.pending) and (part := self.pending[count][1]) is not None:
            _apply(data, self.pending[count][0], part[: torn.randrange(len(part) + 1)])
        return data


def _apply(data: bytearray, place: int, part: bytes | None) -> None:
    data.extend(bytes(max(0, place - len(data))))
    if part is None:
        del data[place:]
    else:
        data[place : place + len(part)] = part


@dataclass(slots=True, eq=False)
class Folder:
    """``now``: names as processes see them. ``durable``, ``pending``, ``synced``: as for files. One operation may change two
    names."""

    now: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)
    synced: int = 0

    @property
    def operations(self) -> int:
        return self.synced + len(self.pending)

    def change(self, names: dict[str, Node | None]) -> None:
        _rename(self.now, names)
        self.pending.append(names)

    def sync(self, operations: int) -> None:
        count = max(0, operations - self.synced)
        for names in self.pending[:count]:
            _rename(self.durable, names)
        del self.pending[:count]
        self.synced += count

    def names(self, count: int) -> dict[str, Node]:
        found = dict(self.durable)
        for names in self.pending[:count]:
            _rename(found, names)
        return found


def _rename(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(frozen=True, slots=True)
class Loss:
    """What a power loss keeps of what was not synced: nothing, all, or with ``random`` a part of each file and folder."""

    name: str
    bytes: bool = False
    names: bool = False
    random: bool = False


#: a process that is killed loses nothing; the others are power losses
LOSSES: Final = (
    Loss("killed", bytes=True, names=True),
    Loss("all lost"),
    Loss("bytes lost", names=True),
    Loss("names lost", bytes=True),
    Loss("parts lost", random=True),
)


class Disk:
    """``ignored``: parts of paths whose syncs do nothing, as those of a disk that reports a sync and does not perform it."""

    def __init__(self, ignored: tuple[str, ...] = ()) -> None:
        self._root = Folder()
        self._ignored = ignored
        self._inodes: dict[int, File] = {}
        self._syncs: dict[tuple[int, int], tuple[Node, int]] = {}

    def apply(self, record: Record) -> None:
        match record.kind:
            case "C":
                file = self._inodes[record.inode] = File()
                self._change(record.path, file)
            case "W" | "T":
                if record.inode in self._inodes:  # else of a file without a name
                    data = record.data if record.kind == "W" else None
                    self._inodes[record.inode].pending.append((record.offset, data))
            case "S":
                node = self._find(record.path) if record.path else None
                file_node = self._inodes.get(record.inode)
                synced = node if isinstance(node, Folder) else file_node
                if synced is not None:
                    self._syncs[record.pid, record.offset] = synced, synced.operations
            case "E":
                begun = self._syncs.pop((record.pid, record.offset), None)
                if begun is not None and not any(part in record.path for part in self._ignored):
                    begun[0].sync(begun[1])
            case "R":
                moved = self._find(record.path)
                folder, name = self._parent(record.path)
                other_folder, other_name = self._parent(record.other)
                if folder is other_folder:
                    folder.change({name: None, other_name: moved})
                else:
                    other_folder.change({other_name: moved})
                    folder.change({name: None})
            case "L":
                self._change(record.other, self._find(record.path))
            case "U" | "D":
                self._change(record.path, None)
            case "M":
                self._change(record.path, Folder())
            case "N":
                pass
            case _:
                raise AssertionError(f"the log has an unknown record {record.kind!r}")

    def after_power_loss(self, loss: Loss, random: Random) -> Iterator[tuple[str, bytes]]:
        """Return path and bytes of each file that is left."""
        yield from self._left(self._root, "", loss, random)

    def _left(self, folder: Folder, path: str, loss: Loss, random: Random) -> Iterator[tuple[str, bytes]]:
        count = random.randint(0, len(folder.pending)) if loss.random else len(folder.pending) * loss.names
        for name, node in folder.names(count).items():
            place = f"{path}/{name}" if path else name
            if isinstance(node, Folder):
                yield from self._left(node, place, loss, random)
                continue
            count = random.randint(0, len(node.pending)) if loss.random else len(node.pending) * loss.bytes
            yield place, bytes(node.content(count, random if loss.random else None))

    def now(self, path: str) -> bytes:
        """Return the bytes of a file as processes see them."""
        node = self._find(path)
        assert isinstance(node, File), path
        return bytes(node.content(len(node.pending)))

    def _change(self, path: str, node: Node | None) -> None:
        folder, name = self._parent(path)
        folder.change({name: node})

    def _parent(self, path: str) -> tuple[Folder, str]:
        """Return the folder and the name of ``path``. Folders that the log did not make are older than it, and durable."""
        *above, name = path.split("/")
        folder = self._root
        for part in above:
            node = folder.now.get(part)
            if node is None:
                node = folder.now[part] = folder.durable[part] = Folder()
            assert isinstance(node, Folder), path
            folder = node
        return folder, name

    def _find(self, path: str) -> Node | None:
        """Return what processes see at a path."""
        if path == ".":
            return self._root
        folder, name = self._parent(path)
        return folder.now.get(name)
