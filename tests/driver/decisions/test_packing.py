from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.decisions.packing import pack
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, block_id


def block(number: int, size: int, host: int = 0, partitions: Collection[int] = (0,), local: bool = True) -> Block:
    """Block ``number`` of the receiver of ``host``; a receiver has one token of each partition."""
    ranges = tuple(BlockRange("t", p, 1, number, number + 1, 1, 0, "", 100 * p + host) for p in sorted(partitions))
    name = f"r{host}"
    meta = BlockMeta(block_id(name, 1, number), "s", name, 1, number, ranges, len(ranges), 0, f"h{host}")
    return Block(meta, Handle("", 0, size, 0), local)


def host_of(block: Block) -> str:
    return block.meta.host if block.local else ""


#: of one host
BLOCKS = st.lists(st.integers(1, 1000), min_size=1, max_size=60).map(
    lambda sizes: [block(i, size) for i, size in enumerate(sizes)]
)
#: blocks of several hosts; each host has its own partitions
SPREAD = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 4)), min_size=1, max_size=60).map(
    lambda found: [block(i, size, host, (host, host + 10)) for i, (size, host) in enumerate(found)]
)


@given(BLOCKS, st.integers(1, 20))
def test_every_block_is_packed_once_in_order_and_no_task_is_empty(blocks: list[Block], tasks: int) -> None:
    """INV-3."""
    packed = pack(blocks, tasks)
    assert [b for task in packed for b in task] == [block.id for block in blocks]
    assert all(packed)
    assert len(packed) == min(tasks, len(blocks))


@given(SPREAD, st.integers(1, 20))
def test_a_task_is_of_one_host_and_there_are_as_many_as_asked_for(blocks: list[Block], tasks: int) -> None:
    packed = pack(blocks, tasks)
    hosts = {block.id: host_of(block) for block in blocks}
    assert sorted(b for task in packed for b in task) == sorted(hosts)
    assert all(len({hosts[b] for b in task}) == 1 for task in packed)
    assert len(packed) == min(max(tasks, len(set(hosts.values()))), len(blocks))


@given(SPREAD, st.integers(1, 20))
def test_no_task_is_larger_than_its_share_and_one_block(blocks: list[Block], tasks: int) -> None:
    """Of what is left to share when each host has one task."""
    sizes = {block.id: block.handle.length for block in blocks}
    hosts = len({host_of(block) for block in blocks})
    share = sum(sizes.values()) / (max(tasks, hosts) - hosts + 1)
    for task in pack(blocks, tasks):
        assert sum(sizes[b] for b in task) <= share + max(sizes.values())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 12))
def test_a_task_ends_with_the_block_that_fills_its_share_or_where_those_after_it_need_one_each(
    sizes: list[int], tasks: int
) -> None:
    """Block by block, as every release so far has cut the blocks of one host."""
    blocks = [block(i, size) for i, size in enumerate(sizes)]
    expected: list[tuple[str, ...]] = []
    run: list[str] = []
    before = 0
    for index, one in enumerate(blocks):
        run.append(one.id)
        before += one.handle.length
        tasks_left, blocks_left = tasks - len(expected) - 1, len(blocks) - index - 1
        full = before * tasks >= sum(sizes) * (len(expected) + 1)
        if not blocks_left or (tasks_left and (full or blocks_left <= tasks_left)):
            expected.append(tuple(run))
            run = []
    assert pack(blocks, tasks) == tuple(expected)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.sets(st.integers(0, 5), min_size=1)), min_size=1, max_size=30
    ),
    st.integers(1, 8),
)
def test_a_partitions_records_stay_in_order_whatever_its_hosts_were(
    found: list[tuple[int, bool, set[int]]], tasks: int
) -> None:
    """A local copy that was deleted is of no host."""
    blocks = [block(i, 1, host, parts, local) for i, (host, local, parts) in enumerate(found)]
    known = {block.id: block.meta for block in blocks}
    seen: defaultdict[int, list[int]] = defaultdict(list)
    packed = pack(blocks, tasks)
    for task in packed:
        for packed_id in task:
            for range_ in known[packed_id].ranges:
                seen[range_.partition].append(known[packed_id].sequence)
    assert all(order == sorted(order) for order in seen.values())
    assert sum(len(task) for task in packed) == len(blocks)


def test_a_receiver_that_moved_within_a_batch_costs_no_locality_where_order_allows_it() -> None:
    moved = [block(0, 1, 1, (0,)), block(1, 1, 2, (0,)), block(2, 1, 2, (1,))]
    ids = [one.id for one in moved]
    assert pack(moved, 1) == ((ids[0],), (ids[1], ids[2]))
    back = [*moved, block(3, 1, 1, (1,))]
    assert pack(back, 2) == ((ids[0], ids[1]), (ids[2], back[3].id)), "t/1 goes from h2 to h1"


def test_a_block_without_a_copy_at_its_receivers_host_is_of_the_other_one_that_has_it() -> None:
    """As when the first copy was lost, of two."""
    copied = [replace(block(n, 1, host, (host,), local=False), other_hosts=("h9",)) for n, host in enumerate((1, 2))]
    assert pack(copied, 1) == (tuple(one.id for one in copied),)
