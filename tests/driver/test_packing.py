from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driver.packing import pack

BLOCKS = st.lists(st.integers(1, 1000), min_size=1, max_size=60).map(
    lambda sizes: [(f"b{i}", size) for i, size in enumerate(sizes)]
)


@given(BLOCKS, st.integers(1, 20))
def test_every_block_is_packed_once_in_order_and_no_task_is_empty(blocks: list[tuple[str, int]], tasks: int) -> None:
    """INV-3."""
    packed = pack(blocks, tasks)
    assert [b for task in packed for b in task] == [b for b, _ in blocks]
    assert all(packed)
    assert len(packed) == min(tasks, len(blocks))


@given(BLOCKS, st.integers(1, 20))
def test_no_task_is_larger_than_its_share_and_one_block(blocks: list[tuple[str, int]], tasks: int) -> None:
    sizes = dict(blocks)
    share = sum(sizes.values()) / tasks
    for task in pack(blocks, tasks):
        assert sum(sizes[b] for b in task) <= share + max(sizes.values())
