"""Which orphan is adopted at a position, and where the gap before the next one ends."""

from __future__ import annotations

from driver.background.adoption import covering, eligible, next_from, until
from driver.tracker.requests import Search
from tests.support.state.orphans import orphan
from tests.support.state.tracked import tp


def search(position: int, limit: int | None = None) -> Search:
    return Search(tp(), 1, "id-1", position, limit, 5, ())


def test_the_orphan_that_covers_the_position_and_reaches_furthest_is_taken() -> None:
    found = [orphan(0, 12), orphan(8, 20), orphan(10, 15), orphan(15, 30)]
    assert covering(found, 10) == found[1]
    assert covering(found, 20) == found[3]
    assert covering(found, 30) is None


def test_only_orphans_of_the_same_incarnation_beyond_the_position_count() -> None:
    found = [orphan(0, 10), orphan(5, 20, incarnation=2), orphan(5, 20), orphan(5, 20, partition=1)]
    assert eligible(found, search(10), same_topic=True) == [found[2]]


def test_of_a_topic_created_again_only_checked_blocks_count() -> None:
    """Another may hold the records of the new topic, which are read in the new incarnation once more (INV-2)."""
    found = [orphan(0, 10), orphan(0, 10, checked=True)]
    assert eligible(found, search(5), same_topic=False) == [found[1]]


def test_a_gap_ends_where_the_next_orphan_begins_if_kafka_does_not_hold_it_anyway() -> None:
    found = [orphan(30, 40), orphan(20, 25)]
    assert next_from(found, search(10)) == 20
    assert next_from(found, search(10, limit=20)) == -1
    assert next_from([], search(10)) == -1
    assert until(found[0], 35) == 35
    assert until(found[0], None) == until(found[0], 90) == 40
