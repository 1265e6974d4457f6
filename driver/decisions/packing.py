"""Packing of a batch's blocks into tasks. It is deterministic, and journalled, so that a rerun has the same tasks (INV-3).

A batch may have a hundred thousand blocks, and the decision loop answers no request meanwhile, so each block is visited only a
few times. Decision logic, without I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate

from forebay.model.values import Block

#: topic, partition
PartitionKey = tuple[str, int]


def pack(blocks: Sequence[Block], tasks: int) -> tuple[tuple[str, ...], ...]:
    """Return for each task its block ids: ``blocks``, in order of acceptance, cut into ``tasks`` tasks of about equal bytes.

    No task is empty. A task has blocks of one host, so that it can run there; blocks without a local copy form a group of
    their own. If there are more hosts than ``tasks``, each host has one task. The order of a partition's records is
    guaranteed, hosts are only hints: if grouping by host would change the order, because the partition's receiver changed
    within the batch, the blocks are cut in order of acceptance, regardless of their hosts. Raises ValueError if ``tasks`` is
    below 1.
    """
    if tasks < 1:
        raise ValueError("a batch needs at least one task")
    by_host: dict[str, list[Block]] = {}
    for block in blocks:
        host = block.meta.host if block.local else next(iter(block.other_hosts), "")
        by_host.setdefault(host, []).append(block)
    if not _in_order(blocks, by_host.values()):
        by_host = {"": list(blocks)}
    sizes = [[block.handle.length for block in held] for held in by_host.values()]
    shares = _shares([(sum(lengths), len(lengths)) for lengths in sizes], tasks)
    return tuple(
        run
        for held, lengths, share in zip(by_host.values(), sizes, shares, strict=True)
        for run in _cut([block.meta.id for block in held], lengths, share)
    )


def _in_order(blocks: Sequence[Block], by_host: Collection[Sequence[Block]]) -> bool:
    """Whether grouping by host keeps each partition's blocks in order of acceptance."""
    if len(by_host) < 2:
        return True
    partitions = [_partitions(held) for held in by_host]
    seen: set[PartitionKey] = set()
    moved: set[PartitionKey] = set()
    for of_host in partitions:
        moved |= of_host & seen
        seen |= of_host
    if not moved:
        return True
    accepted = {block.meta.id: number for number, block in enumerate(blocks)}
    last: dict[PartitionKey, int] = {}
    for held in by_host:
        for block in held:
            number = accepted[block.meta.id]
            for r in block.meta.ranges:
                place = (r.topic, r.partition)
                if place in moved:
                    if last.get(place, -1) > number:
                        return False
                    last[place] = number
    return True


def _partitions(blocks: Sequence[Block]) -> set[PartitionKey]:
    by_token = {r.token: r for block in blocks for r in block.meta.ranges}  # few, and each of one partition
    return {(r.topic, r.partition) for r in by_token.values()}


def _shares(hosts: Sequence[tuple[int, int]], tasks: int) -> list[int]:
    """Return how many tasks each of ``hosts`` (bytes, blocks) gets: one each, and every further task goes to the host whose
    tasks are the largest."""
    shares = [1] * len(hosts)
    for _ in range(tasks - len(hosts)):
        open_ = [index for index, (_, count) in enumerate(hosts) if shares[index] < count]
        if not open_:
            break
        shares[max(open_, key=lambda index: hosts[index][0] / shares[index])] += 1
    return shares


def _cut(block_ids: Sequence[str], sizes: Sequence[int], tasks: int) -> list[tuple[str, ...]]:
    """Cut ``block_ids``, in order, into at most ``tasks`` parts of about equal bytes. ``sizes``: the size of each block, in
    bytes."""
    count = len(block_ids)
    up_to = list(accumulate(sizes))
    packed: list[tuple[str, ...]] = []
    begin = 0
    while begin < count:
        after = tasks - len(packed) - 1  # tasks that follow; each gets a block if there is one
        end = count
        if after:
            share = -(-up_to[-1] * (len(packed) + 1) // tasks)
            full = bisect_left(up_to, share, begin)
            end = min(count, max(begin, min(full, count - 1 - after)) + 1)
        packed.append(tuple(block_ids[begin:end]))
        begin = end
    return packed
