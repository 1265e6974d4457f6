"""The names of a stream's block segments. A store's listing may lack the newest ones, so they are looked up, too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from wal.segments.layout import BlockPlace, block_folder, block_segment, parse_block
from wal.storage import Storage, existing

#: names of an epoch that are looked up together, from its last known segment down; if none of them is there, none before them is
LOOKED_BACK = 16
#: names that a store is asked for at the same time
_ASKED_TOGETHER = 256


def block_segments(
    storage: Storage, stream: str, known: Iterable[tuple[str, int, int]], check: Callable[[], None] = lambda: None
) -> list[str]:
    """Return the paths of the block segments that the store lists, and of those that its listing may lack, in order of receiver,
    epoch and sequence.

    ``known``: receiver, epoch, and the highest sequence that the epoch is known to have had, 0 for none. Without it, an epoch is
    not found if none of its segments is listed. ``check`` is called before each group of requests. Raises StoreError, and what
    ``check`` raises.
    """
    listed: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in storage.list(block_folder(stream)):
        if (place := parse_block(path)) is not None:
            listed[place[1:3]].add(place.sequence)
    found = {BlockPlace(stream, *writer, sequence) for writer, sequences in listed.items() for sequence in sequences}
    lowest = {writer: min(sequences) for writer, sequences in listed.items()}
    ends = {writer: max(sequences) for writer, sequences in listed.items()}
    for receiver, epoch, last in known:
        ends[receiver, epoch] = max(ends.get((receiver, epoch), 0), last)
    before = [(writer, end) for writer, end in ends.items() if end]
    while before:
        groups = [
            [
                BlockPlace(stream, *writer, sequence)
                for sequence in range(max(lowest.get(writer, 1), end - LOOKED_BACK + 1), end + 1)
            ]
            for writer, end in before
        ]
        found |= _existing(storage, (place for group in groups for place in group if place not in found), check)
        before = [
            (group[0][1:3], group[0].sequence - 1)
            for group in groups
            if group[0].sequence > lowest.get(group[0][1:3], 1) and not found.isdisjoint(group)
        ]
    following = {BlockPlace(stream, *writer, end + 1) for writer, end in ends.items()}
    # names are dense: the first one that is free ends an epoch
    while following := _existing(storage, following, check):
        found |= following
        following = {place._replace(sequence=place.sequence + 1) for place in following}
    return [block_segment(*place) for place in sorted(found)]


def _existing(storage: Storage, places: Iterable[BlockPlace], check: Callable[[], None]) -> set[BlockPlace]:
    by_path = {block_segment(*place): place for place in places}
    paths, there = list(by_path), set()
    for at in range(0, len(paths), _ASKED_TOGETHER):
        check()
        there |= {by_path[path] for path in existing(storage, paths[at : at + _ASKED_TOGETHER])}
    return there
