"""How many offsets are read, and in how many tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.kafka.consume.planning import (
    PartitionRates,
    gathered,
    is_enough,
    limit_by_rates,
    share_by_lag,
    spans,
    split_ranges,
)
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def sizes(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return [(range_.partition, range_.size) for range_ in ranges]


def test_repr_of_range_has_public_name() -> None:
    assert repr(OffsetRange("t", 0, 5, 9)) == "OffsetRange('t', 0, 5, 9)"
    assert repr(OffsetRange("t", 0, 5, 9, "x", 2)) == "OffsetRange('t', 0, 5, 9, topic_id='x', records=2)"


def test_split_without_limits_only_skips_empty_ranges() -> None:
    assert sizes(split_ranges([OffsetRange("t", 0, 5, 5), OffsetRange("t", 1, 5, 9)])) == [(1, 4)]


#: sizes, min_partitions, max_records → sizes: the answers of Spark's KafkaOffsetRangeCalculator
SPARK = [
    ([10, 10], 1, None, [10, 10]),
    ([1, 1], 3, None, [1, 1]),  # nothing to cut
    ([100], 3, None, [33, 33, 34]),
    ([10, 90], 2, None, [10, 90]),
    ([10, 90], 4, None, [10, 30, 30, 30]),
    ([1, 1, 998], 4, None, [1, 1, 499, 499]),
    ([2, 8], 3, None, [2, 4, 4]),
    ([4], None, 3, [2, 2]),
    ([7, 2], None, 3, [2, 2, 3, 2]),
    ([100], 3, 10, [10] * 10),
    ([10], 20, None, [1] * 10),  # no part is empty
]


@pytest.mark.parametrize(("given", "least", "most", "found"), SPARK)
def test_ranges_are_cut_as_in_sparks_calculator(
    given: list[int], least: int | None, most: int | None, found: list[int]
) -> None:
    ranges = [OffsetRange("t", number, 7, 7 + size) for number, size in enumerate(given)]
    assert [size for _, size in sizes(split_ranges(ranges, least, most))] == found


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=8),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 500),
)
def test_parts_are_adjacent_and_cover_the_range(
    given: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    """INV-2: no offset is read twice, and none is left out."""
    ranges = [
        OffsetRange("t", number, begin, begin + size, "id", leader_epoch=7)
        for number, (begin, size) in enumerate(given)
    ]
    parts = split_ranges(ranges, least, most)
    assert all((part.topic_id, part.leader_epoch) == ("id", 7) for part in parts)
    for range_ in ranges:
        own = [part for part in parts if part.partition == range_.partition]
        ends = [range_.from_offset, *(part.until_offset for part in own)]
        assert [part.from_offset for part in own] == ends[:-1]
        assert ends[-1] == range_.until_offset
        assert all(part.size for part in own)
        assert most is None or all(part.size <= most for part in own)


#: sizes, parts_max, offsets_max → what each task reads
TOGETHER = [
    ([], 4, 10, []),
    ([1, 2, 3, 4], 4, 10, [[1, 2, 3, 4]]),
    ([1, 2, 3, 5], 4, 10, [[1, 2, 3], [5]]),
    ([1, 1, 1, 1, 1], 2, 10, [[1, 1], [1, 1], [1]]),
    ([100, 1, 2, 100, 1], 4, 10, [[100], [1, 2], [100], [1]]),
]


@pytest.mark.parametrize(("given", "parts_max", "offsets_max", "found"), TOGETHER)
def test_small_parts_share_a_task_and_large_ones_do_not(
    given: list[int], parts_max: int, offsets_max: int, found: list[list[int]]
) -> None:
    tasks = gathered([OffsetRange("t", n, 7, 7 + size) for n, size in enumerate(given)], parts_max, offsets_max)
    assert [[span.size for span in task] for task in tasks] == found
    assert [span.partition for task in tasks for span in task] == list(range(len(given)))  # INV-2: each once, in order


def test_limit_is_shared_by_lag_and_starves_no_partition() -> None:
    begin, end = {A: 0, B: 100, C: 7}, {A: 900, B: 200, C: 8}
    assert share_by_lag(begin, end, 100) == {A: 89, B: 109, C: 8}  # 1001 wait: 89.9, 9.99, 0.1
    assert share_by_lag(begin, end, 5000) == end
    assert share_by_lag(end, end, 5) == end
    assert share_by_lag({A: 900}, {A: 800}, 5) == {A: 800}  # the end went back: the caller must see it


def test_trigger_waits_for_enough_offsets_within_limit() -> None:
    assert not is_enough({A: 0}, {A: 9}, 10, 1.0, 2.0)
    assert is_enough({A: 0}, {A: 10}, 10, 1.0, 2.0)
    assert is_enough({A: 0}, {A: 0}, 10, 2.0, 2.0)


def test_rates_bound_each_partition_and_learned_rate_is_shared_by_lag() -> None:
    begin, end = {A: 0, B: 0, C: 0}, {A: 600, B: 300, C: 100}
    none, most, least = PartitionRates(), PartitionRates(50.0), PartitionRates(50.0, 70)
    assert limit_by_rates(begin, end, none, 0, 1) == end
    assert limit_by_rates(begin, end, none, 100, 1) == {A: 60, B: 30, C: 10}
    assert limit_by_rates(begin, end, most, 100, 1) == {A: 50, B: 30, C: 10}
    assert limit_by_rates(begin, end, most, 0, 2) == {A: 100, B: 100, C: 100}
    assert limit_by_rates(begin, end, least, 100, 1) == {A: 70, B: 70, C: 70}
    assert limit_by_rates(begin, end, none, 1, 0.5) == {A: 1, B: 1, C: 1}
    assert limit_by_rates(end, end, most, 100, 1) == end


@pytest.mark.parametrize(("most", "least"), [(0.0, 0), (5.0, 0), (5.0, -1), (-1.0, 1)])
def test_rates_that_starve_a_partition_are_refused(most: float, least: int) -> None:
    with pytest.raises(UsageError, match="allowed are most from 0, and least from 1"):
        PartitionRates(most, least)


def test_partition_without_beginning_begins_at_its_end() -> None:
    assert spans({A: 1}, {B: 9, A: 4}, {"t": "id"}) == [
        OffsetRange("t", 0, 1, 4, "id"),
        OffsetRange("t", 1, 9, 9, "id"),
    ]


@pytest.mark.parametrize(
    ("begin", "end", "message"),
    [(5, 4, r"t/0\[5, 4\): from 5 is beyond until 4"), (-1, 4, "offsets begin at 0")],
)
def test_impossible_range_is_refused_with_both_ends(begin: int, end: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OffsetRange("t", 0, begin, end)
    with pytest.raises(UsageError, match="min_partitions 0"):
        split_ranges([], 0)


def test_ranges_are_not_cut_into_more_parts_than_a_batch_can_have() -> None:
    """INV-6: an ending offset may be far beyond the log's end."""
    whole = OffsetRange("t", 0, 0, 2**63 - 1)
    for limits in ({"max_records": 4}, {"min_partitions": 2**31}):
        with pytest.raises(UsageError, match="tasks; allowed are 1000000"):
            split_ranges([whole], **limits)
    assert sizes(split_ranges([whole], min_partitions=2)) == [(0, 2**62 - 1), (0, 2**62)]
    assert sizes(split_ranges([OffsetRange("t", 0, 0, 3)], min_partitions=2**31)) == [(0, 1)] * 3
