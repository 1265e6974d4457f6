"""The log's writer: append, group sync, roll by size and age; poison a failed segment and write its frames again from memory.

Only one thread may call it. It keeps every frame in memory until the frame is durable. On a store of whole objects every sync
writes one object, a segment of one group. This module contains everything that happens to a frame from ``append`` until it has
a handle, for both kinds of store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import msgspec

from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.model.values import Handle
from forebay.process import failpoints
from wal.segments.encoding import check_lengths, frame_pieces
from wal.segments.frame import HEADER_LENGTH, FrameKind, SegmentHeader, aligned, parse_header
from wal.segments.payload import Payload
from wal.storage import AppendFile, Storage, store_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: frames up to this many bytes are joined and written in one call; larger ones buffer by buffer, without a copy
_JOIN_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """The writer's identity, as in each segment's header. ``writer``: the receiver's id, or the name of another log's writer."""

    stream: str
    writer: str
    epoch: int
    timeline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """When a new segment begins: the next group of frames starts one if the open segment has reached ``size_bytes`` or
    ``age_seconds``.

    A group is the frames appended between two syncs. All its frames are in one segment, so a segment may exceed ``size_bytes``
    by one group. On a store of whole objects each group is a segment, whatever the limits.
    """

    size_bytes: int
    age_seconds: float


_NOTHING = Payload.of(b"")


@dataclass(slots=True, eq=False)
class Pending:
    """An appended frame. ``handle``: set once, by the sync that makes the frame durable. ``tag``: for the caller."""

    kind: FrameKind
    handle: Handle | None = None
    tag: object = None
    _metadata: bytes = b""
    _payload: Payload = _NOTHING
    _place: Handle | None = None  # its last place, durable or not

    @property
    def frame_bytes(self) -> int:
        """The number of bytes of the frame, up to where the next one begins."""
        return HEADER_LENGTH + aligned(len(self._metadata)) + aligned(self._payload.length)

    def forget(self) -> None:
        """Release the frame's bytes from memory. After this, the frame cannot be written again."""
        self._metadata, self._payload = b"", _NOTHING


@dataclass(slots=True, eq=False)
class _Segment:
    path: str
    sequence: int
    uid: int
    file: AppendFile
    opened_at: float
    size: int = 0
    frames: int = 0
    durable: bool = False  # at least one frame of it is durable


@dataclass(frozen=True, slots=True)
class _Object:
    """A whole segment, which was or will be put under ``path``."""

    path: str
    data: bytes
    frames: list[Pending]


class LogWriter:
    """Writes one log: segments ``name(first_sequence)``, ``name(first_sequence + 1)``, … without a missing name.

    ``now``: seconds since 1970, for ages and for the time in segment headers. ``new_uid``: a random number of 64 bits for each
    segment. ``failpoints``: whether the writer passes the ``wal.*`` failpoints (block segments do).

    If a write or a sync fails, the segment is poisoned: its descriptor is never synced again. The frames that were not durable
    yet are handled by the kind of error:

    * Lack of space or quota: :meth:`sync` raises OutOfSpaceError and keeps the frames. The next call tries again, in a new
      segment. A segment without a durable frame is deleted and its name is used again, so failed attempts leave nothing behind.
    * Another error, with ``rewrite``: :meth:`sync` writes the frames into one new segment. If that fails too, it raises
      StoreError and keeps the frames, and the next call tries again.
    * Another error, without ``rewrite``: StoreError is raised immediately, and by every call after it.

    On a store of whole objects :meth:`append` writes nothing, and :meth:`sync` puts one object. After an error it is unknown
    whether the object is stored or will appear later. So the next sync puts **the very same bytes under the same name** until
    they are stored, and only then puts the frames appended since as the next object. A late attempt then stores this writer's
    own bytes, names stay dense, and one taken name is enough to end a fenced writer (``wal.segments.barrier``).

    FencedError means that a segment's name is taken: another process writes under this epoch.

    One class, because the rules after an error read the open segment, the pending frames and the object at the same time.
    """

    def __init__(
        self,
        storage: Storage,
        name: Callable[[int], str],
        *,
        identity: SegmentIdentity,
        limits: SegmentLimits,
        now: Callable[[], float],
        new_uid: Callable[[], int],
        rewrite: bool = True,
        failpoints: bool = False,
        first_sequence: int = 1,
    ) -> None:
        self._storage = storage
        self._name = name
        self._identity = identity
        self._limits = limits
        self._now = now
        self._new_uid = new_uid
        self._rewrite = rewrite
        self._failpoints = failpoints
        self._next_sequence = first_sequence
        self._maybe_created = False  # an attempt to create the next segment failed and may have left its name
        self._segment: _Segment | None = None
        self._unused: _Segment | None = (
            None  # deleted for lack of space without a durable frame; its name is used again
        )
        self._pending: list[Pending] = []
        self._object: _Object | None = None  # built, but not known to be stored; has the oldest pending frames
        self._landed: list[Pending] = []  # durable, but not returned yet, because the object after it failed
        self._dead: StoreError | FencedError | None = None
        #: paths of the segments that this writer will never write to again, oldest first; the caller may clear it
        self.sealed: list[str] = []

    @property
    def current_path(self) -> str | None:
        """The open segment; None before the first frame, after an error, and on a store of whole objects."""
        return None if self._segment is None else self._segment.path

    @property
    def next_sequence(self) -> int:
        """The sequence of the next segment."""
        return self._next_sequence

    def unsynced(self) -> int:
        """Return how many appended frames are not known to be durable."""
        return len(self._pending)

    def append(self, kind: FrameKind, metadata: bytes, payload: Buffer | Sequence[Buffer] | Payload) -> Pending:
        """Write one frame; not durable. The payload's bytes must not change until its sync.

        With ``rewrite``, a failed write raises nothing here: the frame is kept, and :meth:`sync` writes it or raises. Raises
        ValueError for lengths above a frame's limits; StoreError without ``rewrite``.
        """
        self._refuse_if_dead()
        given = payload if isinstance(payload, Payload) else Payload.of(payload)
        check_lengths(len(metadata), given.length)
        pending = Pending(kind, _metadata=metadata, _payload=given)
        if not self._storage.appendable:
            self._pending.append(pending)
            return pending
        failed = bool(self._pending) and self._segment is None
        self._pending.append(pending)
        if failed:
            return pending  # sync will write it with the earlier frames of this group, whose write failed
        if self._segment is not None and len(self._pending) == 1 and self._full(self._segment, pending.frame_bytes):
            self._seal()
        try:
            if self._segment is None:
                self._open()
            self._write(pending)
        except OutOfSpaceError:
            self._make_room()
        except StoreError as error:
            self._seal()
            if not self._rewrite:
                raise self._die(error) from error
        return pending

    def sync(self) -> list[Pending]:
        """Make everything appended since the last sync durable. Return it in order, each frame with its final handle.

        Raises OutOfSpaceError, StoreError, FencedError; see the class.
        """
        self._refuse_if_dead()
        if not self._storage.appendable:
            return self._sync_objects()
        if not self._pending:
            return []
        if self._segment is not None:
            try:
                return self._commit()
            except OutOfSpaceError:
                self._make_room()
                raise
            except StoreError as error:
                self._seal()
                if not self._rewrite:
                    raise self._die(error) from error
        try:
            self._check_space()
            self._open()
            for pending in self._pending:
                self._write(pending)
            return self._commit()
        except OutOfSpaceError:
            self._make_room()
            raise
        except StoreError as error:
            self._seal()
            if not self._rewrite:
                raise self._die(error) from error
            raise

    def close(self) -> None:
        """Close the writer without a sync: frames that were not synced may be lost. May be repeated."""
        self._seal()
        self._pending.clear()
        self._object = None
        if self._dead is None:
            self._dead = StoreError("the log's writer is closed")

    def _full(self, segment: _Segment, frame_bytes: int) -> bool:
        if segment.frames <= 1:
            return False
        old = self._now() - segment.opened_at >= self._limits.age_seconds
        return old or segment.size + frame_bytes > self._limits.size_bytes

    def _open(self) -> None:
        if self._unused is not None:
            self._storage.delete(self._unused.path)
        while True:
            path = self._name(self._next_sequence)
            try:
                file = self._storage.create(path)
            except FileExistsError:
                if not self._maybe_created:
                    raise self._die(_name_taken(path)) from None
                self._maybe_created = False
                self.sealed.append(path)
                self._next_sequence += 1
                continue
            except StoreError:
                self._maybe_created = True
                raise
            break
        now = self._now()
        # the same uid: a follower may have read frames of the deleted file, which are written again at the same places
        uid = self._new_uid() if self._unused is None else self._unused.uid
        self._unused = None
        self._segment = _Segment(path, self._next_sequence, uid, file, opened_at=now)
        self._maybe_created = False
        self._next_sequence += 1
        self._write(self._header(path, self._segment.sequence, self._segment.uid, now))

    def _header(self, path: str, sequence: int, uid: int, now: float) -> Pending:
        header = SegmentHeader(
            path=path,
            stream=self._identity.stream,
            writer=self._identity.writer,
            epoch=self._identity.epoch,
            sequence=sequence,
            timeline=self._identity.timeline,
            uid=uid,
            created_ms=int(now * 1000),
        )
        return Pending(FrameKind.SEGMENT, _metadata=msgspec.msgpack.encode(header))

    def _write(self, pending: Pending) -> None:
        segment = self._segment
        assert segment is not None
        frame: Iterable[Buffer] = _pieces(pending, segment.path, segment.uid, segment.size, segment.frames)
        length = pending.frame_bytes
        if length <= _JOIN_BYTES_MAX:
            frame = [b"".join(frame)]
        if self._failpoints and pending.kind != FrameKind.SEGMENT and failpoints.armed("wal.mid-write"):
            whole = b"".join(frame)
            segment.file.append(whole[: length // 2])
            _pass("wal.mid-write", segment.path)
            frame = [whole[length // 2 :]]
        for part in frame:
            segment.file.append(part)
        segment.size += length
        segment.frames += 1

    def _commit(self) -> list[Pending]:
        segment = self._segment
        assert segment is not None
        if self._failpoints:
            _pass("wal.before-sync", segment.path)
        segment.file.sync()
        segment.durable = True
        if self._failpoints:
            _pass("wal.after-sync", segment.path)
        done, self._pending = self._pending, []
        _set_handles(done)
        return done

    def _sync_objects(self) -> list[Pending]:
        while self._pending:
            if self._object is None:
                self._object = self._build()
            try:
                self._put(self._object)
            except OutOfSpaceError:
                raise
            except StoreError as error:
                if not self._rewrite:
                    raise self._die(error) from error
                raise
            done, self._object = self._object, None
            self._pending = self._pending[len(done.frames) :]
            self._landed += done.frames
            self.sealed.append(done.path)
            _set_handles(done.frames)
        landed, self._landed = self._landed, []
        return landed

    def _build(self) -> _Object:
        """Return everything pending as one segment under the next sequence."""
        path = self._name(self._next_sequence)
        uid = self._new_uid()
        frames = list(self._pending)
        data = BytesIO()  # not a list of pieces: a large object would be in memory twice when they are joined
        for index, pending in enumerate([self._header(path, self._next_sequence, uid, self._now()), *frames]):
            for piece in _pieces(pending, path, uid, data.tell(), index):
                data.write(piece)
        self._next_sequence += 1
        for pending in frames:
            pending.forget()  # from now on the object's own bytes are sent again
        return _Object(path, data.getvalue(), frames)

    def _put(self, whole: _Object) -> None:
        if self._failpoints:
            _pass("wal.mid-write", whole.path)
            _pass("wal.before-sync", whole.path)
        try:
            self._storage.put_new(whole.path, whole.data)
        except FileExistsError:
            # an earlier attempt of this writer may have been stored after its error; the uid is in the bytes
            if not self._holds(whole):
                raise self._die(_name_taken(whole.path)) from None
        if self._failpoints:
            _pass("wal.after-sync", whole.path)

    def _holds(self, whole: _Object) -> bool:
        """Return whether the store has ``whole``; False if another writer has put its own object there.

        Raises StoreError, also if the object is damaged or was not read whole: then it may be this writer's own.
        """
        try:
            data = self._storage.read(whole.path, 0, len(whole.data) + 1)
        except FileNotFoundError:
            raise StoreError(
                f"segment {whole.path} existed already, and was deleted before it could be compared: look for another "
                "clean-up of the store, such as a lifecycle rule"
            ) from None
        if data == whole.data:
            return True
        there, own = parse_header(data), parse_header(whole.data)
        if isinstance(there, str) or isinstance(own, str) or there.uid == own.uid:
            raise StoreError(
                f"segment {whole.path} exists already, and is not what this writer sent: its object is damaged, or was not read "
                "whole"
            )
        return False

    def _seal(self) -> None:
        """Seal the open segment, if there is one: it is never written or synced again."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self.sealed.append(segment.path)
            segment.file.close()

    def _make_room(self) -> None:
        """Seal the open segment for lack of space, and delete it if none of its frames is durable.

        Its bytes may take half of the space that the frames need, and some stores notice a quota only when it is exceeded.
        """
        segment = self._segment
        self._seal()
        if segment is not None and not segment.durable:
            self.sealed.remove(segment.path)
            self._next_sequence = segment.sequence
            self._unused = segment
            with suppress(StoreError):  # the next attempt deletes it first
                self._storage.delete(segment.path)

    def _check_space(self) -> None:
        """Raise OutOfSpaceError if the store reports too little free space for the pending frames."""
        free = self._storage.free_bytes()
        needed = sum(2 * HEADER_LENGTH + len(pending._metadata) + pending._payload.length for pending in self._pending)
        if free is not None and free < needed:
            raise OutOfSpaceError(
                f"cannot write to {self._storage.url}: {needed} bytes are needed, but only {free} are free"
            )

    def _refuse_if_dead(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(f"the log's writer ended after an error: {self._dead}") from self._dead

    def _die(self, error: StoreError | FencedError) -> StoreError | FencedError:
        self._dead = error
        return error


def _pieces(pending: Pending, path: str, uid: int, offset: int, index: int) -> Iterator[Buffer]:
    """Return the frame piece by piece, and set its place in ``pending``."""
    payload = pending._payload
    pending._place = Handle(
        path=path,
        offset=offset,
        length=HEADER_LENGTH + aligned(len(pending._metadata)) + payload.length,
        checksum=payload.checksum,
    )
    return frame_pieces(pending.kind, uid=uid, offset=offset, index=index, metadata=pending._metadata, payload=payload)


def _name_taken(path: str) -> FencedError:
    return FencedError(
        f"cannot create segment {path}: it exists already, so another process writes this log under the same epoch"
    )


def _set_handles(done: list[Pending]) -> None:
    for pending in done:
        pending.handle = pending._place
        pending.forget()


def _pass(name: str, path: str) -> None:
    try:
        failpoints.hit(name)
    except OSError as error:
        raise store_error(error, f"{path} can't be written") from error
