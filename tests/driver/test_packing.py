from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from driver.packing import BlockToPack, pack

#: of one host
BLOCKS = st.lists(st.integers(1, 1000), min_size=1, max_size=60).map(
    lambda sizes: [BlockToPack(f"b{i}", size) for i, size in enumerate(sizes)]
)
#: of several hosts, each of which has partitions of its own
SPREAD = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 4)), min_size=1, max_size=60).map(
    lambda found: [
        BlockToPack(f"b{i}", size, f"h{host}", (f"t/{host}", f"u/{host}")) for i, (size, host) in enumerate(found)
    ]
)


@given(BLOCKS, st.integers(1, 20))
def test_every_block_is_packed_once_in_order_and_no_task_is_empty(blocks: list[BlockToPack], tasks: int) -> None:
    """INV-3."""
    packed = pack(blocks, tasks)
    assert [b for task in packed for b in task] == [block.id for block in blocks]
    assert all(packed)
    assert len(packed) == min(tasks, len(blocks))


@given(SPREAD, st.integers(1, 20))
def test_a_task_is_of_one_host_and_there_are_as_many_as_asked_for(blocks: list[BlockToPack], tasks: int) -> None:
    packed = pack(blocks, tasks)
    hosts = {block.id: block.host for block in blocks}
    assert sorted(b for task in packed for b in task) == sorted(hosts)
    assert all(len({hosts[b] for b in task}) == 1 for task in packed)
    assert len(packed) == min(max(tasks, len(set(hosts.values()))), len(blocks))


@given(SPREAD, st.integers(1, 20))
def test_no_task_is_larger_than_its_share_and_one_block(blocks: list[BlockToPack], tasks: int) -> None:
    """Of what is left to share when each host has one task."""
    sizes = {block.id: block.bytes for block in blocks}
    spare = max(tasks, len({block.host for block in blocks})) - len({block.host for block in blocks})
    share = sum(sizes.values()) / (spare + 1)
    for task in pack(blocks, tasks):
        assert sum(sizes[b] for b in task) <= share + max(sizes.values())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 5), min_size=1)), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_a_partitions_records_stay_in_order_whatever_its_hosts_were(
    found: list[tuple[int, set[int]]], tasks: int
) -> None:
    blocks = [BlockToPack(f"b{i:02}", 1, f"h{host}", tuple(map(str, parts))) for i, (host, parts) in enumerate(found)]
    partitions = {block.id: block.partitions for block in blocks}
    seen: defaultdict[str, list[str]] = defaultdict(list)
    for task in pack(blocks, tasks):
        for block in task:
            for partition in partitions[block]:
                seen[partition].append(block)
    assert all(order == sorted(order) for order in seen.values())
    assert sum(len(task) for task in pack(blocks, tasks)) == len(blocks)


def test_a_receiver_that_moved_within_a_batch_costs_no_locality_where_order_allows_it() -> None:
    moved = [
        BlockToPack("b0", 1, "h1", ("t/0",)),
        BlockToPack("b1", 1, "h2", ("t/0",)),
        BlockToPack("b2", 1, "h2", ("t/1",)),
    ]
    assert pack(moved, 1) == (("b0",), ("b1", "b2"))
    back = [*moved, BlockToPack("b3", 1, "h1", ("t/1",))]
    assert pack(back, 2) == (("b0", "b1"), ("b2", "b3")), "t/1 goes from h2 to h1"
