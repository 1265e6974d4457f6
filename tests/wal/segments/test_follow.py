"""Following a log while it is written."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.deploy.conftest import Project
from tests.support.state.segments import contents, memory, name, segment, writer
from wal.segments.follow import EpochFollower, Skipped, StreamFollower
from wal.segments.frame import Frame, FrameKind
from wal.segments.layout import BlockPlace
from wal.segments.scan import Damage, Scanned, SegmentScan, TornTail, scan_segment
from wal.storage import MemoryStorage, Storage

_ROOT = str(Path(__file__).parents[3])
_names = itertools.count()


class Growing:
    """The beginning of a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.length = 0

    def size(self, path: str) -> int:
        return self.length

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        end = self.length if length is None else min(self.length, offset + length)
        return self.data[offset:end]


def whole_segment(blocks: int) -> tuple[str, bytes]:
    storage = memory()
    path = segment(storage, [(b"m%d" % number, b"p" * (number * 37)) for number in range(blocks)])
    return path, storage.read(path)


def grown(scan: SegmentScan, file: Growing, lengths: Sequence[int], sealed_at_end: bool = True) -> list[Scanned]:
    found: list[Scanned] = []
    for length in lengths:
        file.length = length
        found += scan.more(sealed=False)
    if sealed_at_end:
        found += scan.more(sealed=True)
    return found


def test_a_segment_that_grows_byte_by_byte_gives_each_frame_once_and_no_torn_tail() -> None:
    path, data = whole_segment(4)
    file = Growing(data)
    scan = SegmentScan(file, path)
    given = 0
    for length in range(len(data) + 1):
        for found in grown(scan, file, [length], sealed_at_end=False):
            assert isinstance(found, Frame)
            assert found.offset + found.length <= length
            given += 1
    assert given == 5
    assert grown(scan, file, [len(data)]) == []


def test_a_segment_that_grows_by_any_steps_gives_what_one_scan_gives() -> None:
    path, data = whole_segment(20)
    for seed in range(50):
        draw = Random(seed)
        damaged = bytearray(data)
        for _ in range(draw.randrange(3)):
            damaged[draw.randrange(len(data))] ^= 0xFF
        cut = draw.randrange(len(data) // 2, len(data) + 1)
        file = Growing(bytes(damaged[:cut]))
        steps = sorted(draw.randrange(cut + 1) for _ in range(draw.randrange(12)))
        file.length = cut
        at_once = [repr(found) for found in scan_segment(file, path)]
        in_steps = [repr(found) for found in grown(SegmentScan(file, path), file, [*steps, cut])]
        assert [without_buffers(f) for f in in_steps] == [without_buffers(f) for f in at_once], f"seed {seed}"


def without_buffers(found: str) -> str:
    return found.partition("payload=")[0]


def test_damage_is_yielded_once_a_valid_frame_follows() -> None:
    path, data = whole_segment(3)
    file = Growing(data)
    _, _, first, second = (found for found in scan_segment(at_full_length(file), path) if isinstance(found, Frame))
    damaged = bytearray(data)
    damaged[first.offset + first.length - 1] ^= 1
    file = Growing(bytes(damaged))
    scan = SegmentScan(file, path)
    assert [type(found) for found in grown(scan, file, [second.offset], sealed_at_end=False)] == [Frame] * 2
    found = grown(scan, file, [second.offset + second.length], sealed_at_end=False)
    assert [type(item) for item in found] == [Damage, Frame]


def at_full_length(file: Growing) -> Growing:
    file.length = len(file.data)
    return file


def test_torn_tail_is_yielded_when_the_segment_is_sealed() -> None:
    path, data = whole_segment(2)
    file = Growing(data)
    scan = SegmentScan(file, path)
    found = grown(scan, file, [len(data) - 40], sealed_at_end=False)
    assert len(contents(found)) == 1
    assert [type(item) for item in scan.more(sealed=True)] == [TornTail]


# ---- one epoch -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["appendable", "objects"])
def storage(request: pytest.FixtureRequest) -> Storage:
    return MemoryStorage(f"follow-{next(_names)}", appendable=request.param == "appendable")


def payloads(found: Sequence[tuple[str, Scanned | Skipped]]) -> list[bytes]:
    return [
        item.payload.to_pybytes()
        for _, item in found
        if isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK
    ]


def test_an_epoch_is_followed_through_its_segments_each_frame_once_in_order(storage: Storage) -> None:
    log = writer(storage, size_bytes=700)
    follower = EpochFollower(storage, BlockPlace("s", "r", 7, 1))
    assert list(follower.more()) == []
    seen: list[bytes] = []
    for number in range(40):
        log.append(FrameKind.BLOCK, b"", b"%d" % number)
        if number % 3 == 2:
            log.sync()
            seen += payloads(list(follower.more()))
            assert seen[-1] == b"%d" % number
    log.sync()
    seen += payloads(list(follower.more()))
    assert seen == [b"%d" % number for number in range(40)]
    assert follower.at.sequence > 5


class Busy:
    """A store whose writer goes on while a reader reads: ``then`` runs after the size of a file was asked."""

    def __init__(self, storage: Storage, then: Callable[[], None]) -> None:
        self._storage = storage
        self._then = then

    def __getattr__(self, attribute: str) -> object:
        return getattr(self._storage, attribute)

    def size(self, path: str) -> int:
        size = self._storage.size(path)
        self._then()
        return size


def test_frames_written_between_listing_and_reading_are_not_skipped() -> None:
    """The writer ends a segment just after it was read to its end: its last frames are yielded before the next segment."""
    below = memory()
    log = writer(below, size_bytes=600)
    numbers = iter(range(60))

    def write() -> None:
        for number in itertools.islice(numbers, 2):  # some into the open segment, some into the next
            log.append(FrameKind.BLOCK, b"", b"%d" % number)
            log.sync()

    write()
    follower = EpochFollower(Busy(below, write), BlockPlace("s", "r", 7, 1))  # type: ignore[arg-type]
    seen: list[bytes] = []
    for _ in range(60):
        seen += payloads(list(follower.more()))
    assert seen == [b"%d" % number for number in range(60)]


def test_sequences_are_compared_as_numbers_when_they_get_a_ninth_digit() -> None:
    storage = MemoryStorage(f"follow-{next(_names)}", appendable=False)
    log = writer(storage)
    log._next_sequence = 99_999_998
    for number in range(4):
        log.append(FrameKind.BLOCK, b"", b"%d" % number)
        log.sync()
    assert storage.list("")[0] == name(100_000_000)  # as texts they sort otherwise
    assert payloads(list(StreamFollower(storage, "s").look())) == [b"0", b"1", b"2", b"3"]


# ---- a stream --------------------------------------------------------------------------------------------------------


def test_segments_deleted_before_they_were_read_are_reported(storage: Storage) -> None:
    log = writer(storage, size_bytes=1)
    follower = StreamFollower(storage, "s")

    def write(numbers: range) -> None:
        for number in numbers:
            log.append(FrameKind.BLOCK, b"", b"%d" % number)
            log.sync()

    write(range(3))
    assert payloads(list(follower.look())) == [b"0", b"1", b"2"]
    at = follower._epochs["r", 7].at.sequence
    write(range(3, 9))
    kept = sorted(storage.list("s"))[-2:]
    for path in storage.list("s"):
        if path not in kept:
            storage.delete(path)
    found = list(follower.look())
    (skipped,) = [item for _, item in found if isinstance(item, Skipped)]
    assert (skipped.sequence, name(skipped.until)) == (at, kept[0])
    assert payloads(found) == [b"7", b"8"]
    assert list(follower.look()) == []


def test_next_listing_finds_other_receivers_and_new_epochs(storage: Storage) -> None:
    from wal.segments.layout import block_segment
    from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits

    uids = itertools.count(1)

    def write(receiver: str, epoch: int, payload: bytes) -> None:
        log = LogWriter(
            storage,
            lambda sequence: block_segment("s", receiver, epoch, sequence),
            identity=SegmentIdentity("s", receiver, epoch, 1),
            limits=SegmentLimits(size_bytes=1 << 20, age_seconds=1e9),
            now=lambda: 1.0,
            new_uid=lambda: next(uids),
        )
        log.append(FrameKind.BLOCK, b"", payload)
        log.sync()

    everything, one = StreamFollower(storage, "s"), StreamFollower(storage, "s", "r2")
    assert list(everything.look()) == []
    write("r1", 5, b"first")
    write("r2", 6, b"second")
    assert list(everything.more()) == []  # which lists nothing
    assert payloads(list(everything.look())) == [b"first", b"second"]
    write("r1", 7, b"third")
    assert payloads(list(everything.look())) == [b"third"]
    assert payloads(list(one.look())) == [b"second"]


# ---- real processes --------------------------------------------------------------------------------------------------

_WRITER = """
import itertools, os, sys
from forebay.model.values import BlockMeta
from tests.support.state.tracked import STREAM, Tracked, offsets
from wal.blocks import encode_meta
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.storage import open_storage
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits

url, epoch, first, count = sys.argv[1], *map(int, sys.argv[2:])
uids = itertools.count(epoch << 8)
tracked = Tracked(partitions=1)
log = LogWriter(
    open_storage(url),
    lambda sequence: block_segment("flights", "r1", epoch, sequence),
    identity=SegmentIdentity("flights", "r1", epoch, 1),
    limits=SegmentLimits(size_bytes=3000, age_seconds=1e9),
    now=lambda: 0.0,
    new_uid=lambda: next(uids),
)
for number in range(first, first + count):
    meta = tracked.block(epoch, [offsets(number * 10, number * 10 + 10, 1)]).meta
    log.append(FrameKind.BLOCK, encode_meta(meta), b"rows" * 50)
    log.sync()
log.append(FrameKind.BLOCK, encode_meta(meta), b"never whole")
segment = log.current_path
size = os.path.getsize(url.removeprefix("file://") + "/" + segment)
os.truncate(url.removeprefix("file://") + "/" + segment, size - 60)  # cut off in the middle of a write
os.kill(os.getpid(), 9)
"""


def test_a_second_process_prints_what_killed_writers_wrote_and_ends_by_ctrl_c_with_0(tmp_path: Path) -> None:
    project = Project(tmp_path)
    follower = subprocess.Popen(
        [str(Path(sys.executable).with_name("forebay")), "wal", "follow", "--from-start", "--json"],
        cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert follower.stdout is not None and follower.stderr is not None
    lines: list[dict[str, object]] = []
    everything = threading.Event()

    def read() -> None:
        for line in follower.stdout or ():
            entry = json.loads(line)
            if entry["kind"] == "block":
                lines.append(entry)
            if len(lines) == 30:
                everything.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert "may not be accepted yet" in follower.stderr.readline()
        for epoch, first, count in ((11, 0, 20), (12, 20, 10)):
            writing = [sys.executable, "-c", _WRITER, f"file://{tmp_path}/wal", str(epoch), str(first), str(count)]
            assert subprocess.run(writing, cwd=_ROOT, check=False, timeout=300).returncode == -signal.SIGKILL
        assert everything.wait(120), lines
    finally:
        follower.send_signal(signal.SIGINT)
        assert follower.wait(90) == 0, follower.stderr.read()
        reader.join()
        follower.stdout.close()
        follower.stderr.close()
    assert len(lines) == 30
    assert [entry["state"] for entry in lines] == ["whole"] * 30
    assert [entry["ranges"] for entry in lines] == [[f"t/0[{n * 10}, {n * 10 + 10})"] for n in range(30)]
