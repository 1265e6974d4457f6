"""The names of block segments, where a listing lacks some."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import cast

import pytest

from forebay.model.errors import UnreachableError
from tests.support.stores.unlisted import Unlisted
from wal.segments.layout import block_segment
from wal.segments.names import block_segments
from wal.storage import MemoryStorage, Storage

_numbers = itertools.count()
EPOCH = 0x1_0000_0001


def name(sequence: int, epoch: int = EPOCH) -> str:
    return block_segment("s", "r1", epoch, sequence)


class Asked(MemoryStorage):
    """Keeps what it is asked for by name."""

    def __init__(self, sequences: Iterable[int]) -> None:
        super().__init__(f"names-{next(_numbers)}", appendable=False)
        self.asked: list[str] = []
        for sequence in sequences:
            self.put_new(name(sequence), b"")

    def exists(self, path: str) -> bool:
        self.asked.append(path)
        return super().exists(path)


def lagging(sequences: Iterable[int], omitted: Iterable[int]) -> Storage:
    return cast(Storage, Unlisted(Asked(sequences), {name(sequence) for sequence in omitted}))


@pytest.mark.parametrize("omitted", [(), (3,), (2,), (4, 5), (2, 5)])
def test_what_the_listing_of_an_epoch_lacks_between_and_after_the_others_is_found(omitted: tuple[int, ...]) -> None:
    storage = lagging(range(1, 6), omitted)
    assert block_segments(storage, "s", ()) == [name(sequence) for sequence in range(1, 6)]


@pytest.mark.parametrize("last", [0, 2, 3])
def test_an_epoch_that_is_not_listed_is_found_if_it_is_known(last: int) -> None:
    storage = lagging(range(1, 4), omitted=range(1, 4))
    assert block_segments(storage, "s", [("r1", EPOCH, last)]) == [name(1), name(2), name(3)]
    assert block_segments(storage, "s", ()) == []


def test_names_that_clean_up_deleted_are_passed_over() -> None:
    storage = lagging([3, 6, 7], omitted=[6, 7])
    assert block_segments(storage, "s", [("r1", EPOCH, 5)]) == [name(3), name(6), name(7)]


def test_names_are_asked_for_from_the_last_one_down_until_a_group_of_them_is_absent() -> None:
    """INV-6: an old segment that stays, as with an orphan, does not make each search ask for all that were deleted since."""
    storage = Asked([1, 1_000])
    assert block_segments(storage, "s", ()) == [name(1), name(1_000)]
    assert storage.asked == [*map(name, range(985, 1_000)), *map(name, range(969, 985)), name(1_001)]


def test_all_that_a_listing_lacks_is_found_however_many_they_are() -> None:
    """Also what is before a segment that the journal counts."""
    storage = lagging(range(1, 61), omitted=range(1, 61))
    assert block_segments(storage, "s", [("r1", EPOCH, 57)]) == [*map(name, range(1, 61))]


def test_no_name_before_the_oldest_listed_one_is_asked_for() -> None:
    """The listing lacks the newest names."""
    storage = Asked([8, 9])
    assert block_segments(storage, "s", [("r1", EPOCH, 9)]) == [name(8), name(9)]
    assert storage.asked == [name(10)]


def test_many_names_are_asked_for_in_groups_each_after_a_check() -> None:
    """INV-6: a driver that stops ends the search."""
    storage, epochs = Asked([]), range(EPOCH, EPOCH + 100)
    checks = iter([None, None])

    def check() -> None:
        try:
            next(checks)
        except StopIteration:
            raise UnreachableError("the driver is stopping") from None

    with pytest.raises(UnreachableError):
        block_segments(storage, "s", [("r1", epoch, 9) for epoch in epochs], check)
    assert len(storage.asked) == 512


def test_the_order_is_by_number() -> None:
    storage = Asked([99_999_999, 100_000_000])
    storage.put_new(name(1, epoch=EPOCH + 1), b"")
    paths = [name(99_999_999), name(100_000_000), name(1, epoch=EPOCH + 1)]
    assert block_segments(storage, "s", ()) == paths
