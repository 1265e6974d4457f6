"""Reads the input of a rebuild: the newest usable snapshot copy, the WAL after it, the history. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from driver.journal import history
from driver.journal.history import FinishedBatch
from driver.journal.log import bounds
from driver.journal.log import reading as journal
from driver.journal.state import State
from forebay.model.errors import CorruptionError, ForebayError, NewerVersionError, RefusedError, StoreError
from forebay.model.values import Block, BlockRange, Handle
from recovery.rebuild.evidence import Evidence, FoundBlock
from wal.blocks import decode_meta
from wal.segments import layout
from wal.segments.frame import Frame, FrameKind
from wal.segments.names import block_segments
from wal.segments.scan import Damage, Newer, read_frame, scan_segment
from wal.storage import Storage

#: topics → their ids in Kafka now, "" for a topic that does not exist; raises ForebayError if Kafka does not answer
TopicIds = Callable[[Iterable[str]], Mapping[str, str]]


def snapshot_copies(wal: Storage, stream: str) -> list[str]:
    """Return the paths of the snapshot copies, newest first.

    A store's listing may lag behind, so the copies after the listed ones are looked up by name.
    """
    folder = layout.snapshot_folder(stream)
    places = {place for path in wal.list(folder) if (place := layout.parse_snapshot_copy(path)) is not None}
    for place in sorted(places):
        following = place.sequence + 1
        while wal.exists(layout.snapshot_copy(stream, place.epoch, following)):
            places.add(place._replace(sequence=following))
            following += 1
    return [layout.snapshot_copy(stream, place.epoch, place.sequence) for place in sorted(places, reverse=True)]


def newest_copy(wal: Storage, stream: str) -> tuple[State, str, list[str]]:
    """Return the newest copy that can be read, its path, and a note on each newer one that can't.

    Raises RefusedError if there is none, StoreError also if a single copy can't be read: an older one would forget what it holds.
    """
    reasons: list[str] = []
    for path in snapshot_copies(wal, stream):
        try:
            corrections: list[str] = []
            state = journal.snapshot_in(wal, path, corrections)
        except FileNotFoundError:
            continue  # superseded since the listing
        except (CorruptionError, NewerVersionError) as error:
            reasons.append(f"snapshot copy {path} can't be used, an older one is used: {error}")
            continue
        except StoreError as error:
            raise StoreError(
                f"cannot rebuild: snapshot copy {path} of {wal.url} can't be read: {error}. Repair its disk or store, and repeat "
                "the command. If it is lost, move its file out of the WAL's folder: the rebuild then begins from an older copy"
            ) from error
        if state is not None:
            return state, path, [*reasons, *corrections, *(bounds.begin_again(state) if corrections else ())]
        reasons.append(f"snapshot copy {path} was not finished; an older one is used")
    detail = f": {'; '.join(reasons)}" if reasons else ""
    raise RefusedError(
        f"{wal.url} holds no snapshot copy of stream {stream!r} from which a journal could be rebuilt{detail}. Restore the "
        "journal or the WAL's folder from a backup",
        "not-found",
    )


def read_evidence(journal_storage: Storage, wal: Storage, stream: str, topic_ids: TopicIds) -> Evidence:
    """Read the newest usable copy, the headers of all block segments, the payloads of blocks after the copy, and the history.

    ``topic_ids`` is called last, and only if a decision depends on it. Raises RefusedError if there is no copy;
    NewerVersionError; StoreError also if a single segment can't be read: it may hold accepted blocks that the copy does not know.
    """
    copy, copy_path, notes = newest_copy(wal, stream)
    archived: list[FinishedBatch] = []
    try:
        archived.extend(history.read(journal_storage, stream))
    except (CorruptionError, FileNotFoundError) as error:
        notes.append(f"the history beside the journal can't be read to its end; what was read is used: {error}")
    found: dict[str, FoundBlock] = {}
    elsewhere: dict[str, list[Block]] = defaultdict(list)
    paths = _segments(wal, stream, copy)
    for path in paths:
        for one in _after(wal, path, copy, notes, elsewhere):
            known = found.get(one.block.id)
            if (
                known is None or one.whole or not known.whole
            ):  # written again after a failed sync: the later one is synced
                found[one.block.id] = one
    copy = _moved(wal, copy, elsewhere)
    present = set(paths)
    named = {block.handle.path for block in copy.blocks.values()}
    gone = frozenset(path for path in named if path not in present and not wal.exists(path))
    ids: Mapping[str, str] = {}
    if unchecked := _unchecked_topics(copy, found.values()):
        try:
            ids = topic_ids(unchecked)  # after the pass: an id that is the same now was the same when they were polled
        except ForebayError as error:
            notes.append(
                f"Kafka could not be asked for the topics' ids: {error}. Blocks that were written without such an id are "
                "taken in only if something shows that they were accepted"
            )
    return Evidence(copy, copy_path, tuple(found.values()), tuple(archived), gone, tuple(notes), ids)


def _unchecked_topics(copy: State, found: Iterable[FoundBlock]) -> set[str]:
    """Return the topics of blocks that are not marked as checked, in incarnations whose topic id is known."""
    return {
        held.topic
        for one in found
        if one.block.meta.checked is not True
        for held in one.block.meta.ranges
        if (partition := copy.partition(held.tp)) is not None and partition.topic_id(held.incarnation)
    }


def _segments(wal: Storage, stream: str, copy: State) -> list[str]:
    known = ((epoch.receiver_id, epoch.epoch, epoch.segments) for epoch in copy.known_epochs())
    return block_segments(wal, stream, known)


def _moved(wal: Storage, copy: State, elsewhere: Mapping[str, Sequence[Block]]) -> State:
    """Return ``copy`` with new handles for blocks whose frames were deleted or damaged and that a recovery has written again."""
    blocks = dict(copy.blocks)
    for block_id, places in elsewhere.items():
        known = blocks[block_id]
        if _is_there(wal, known.handle):
            continue
        for one in reversed(places):  # the same offsets and digests: the same records, though encoded again
            if one.meta.ranges == known.meta.ranges and _is_there(wal, one.handle):
                local = known.local and one.handle.checksum == known.handle.checksum
                blocks[block_id] = Block(one.meta, one.handle, local)
                break
    return msgspec.structs.replace(copy, blocks=blocks) if blocks != copy.blocks else copy


def _after(
    wal: Storage, path: str, copy: State, notes: list[str], elsewhere: dict[str, list[Block]]
) -> Iterator[FoundBlock]:
    """Yield the blocks in a segment that the copy does not know and whose offsets are not all before its positions.

    Blocks that the copy knows under another handle are added to ``elsewhere``, by block id.
    """
    try:
        for item in scan_segment(wal, path, payloads=False):
            if isinstance(item, Newer):
                raise NewerVersionError(
                    path, item.offset, version=item.version, newest=item.newest, feature=item.feature
                )
            if isinstance(item, Damage):
                notes.append(f"{path} is damaged at byte {item.offset}: {item.reason}")
            if not isinstance(item, Frame) or item.header.kind != FrameKind.BLOCK:
                continue
            try:
                meta = decode_meta(item.metadata, path, item.offset)
            except CorruptionError as error:
                notes.append(f"{path} is damaged at byte {item.offset}: {error.reason}")
                continue
            handle = Handle(path, item.offset, item.length, item.header.payload_checksum)
            known = copy.blocks.get(meta.id)
            if known is not None and handle != known.handle:
                elsewhere[meta.id].append(Block(meta, handle, False))
            if known is not None or all(_is_past(copy, held) for held in meta.ranges):
                continue
            yield FoundBlock(Block(meta, handle, False), _is_whole(wal, handle))
    except FileNotFoundError:
        return  # clean-up deleted it since the listing: nothing needs it
    except StoreError as error:
        raise StoreError(
            f"cannot rebuild: segment {path} of {wal.url} can't be read, and may hold blocks that the lost journal accepted: "
            f"{error}. Repair its disk or store, and repeat the command; `forebay wal verify --wal-only` lists all such "
            "segments. If it is lost, move its file out of the WAL's folder: the rebuild then names the offsets that are missing"
        ) from error


def _is_past(copy: State, held: BlockRange) -> bool:
    partition = copy.partition(held.tp)
    if partition is None or held.incarnation > partition.incarnation.number:
        return False
    return held.incarnation < partition.incarnation.number or held.until_offset <= partition.position


def _is_whole(wal: Storage, handle: Handle) -> bool:
    try:
        read_frame(wal, handle)
    except CorruptionError:
        return False
    return True


def _is_there(wal: Storage, handle: Handle) -> bool:
    try:
        return _is_whole(wal, handle)
    except (FileNotFoundError, StoreError):  # only a frame that was read takes the place of one that can't be
        return False
