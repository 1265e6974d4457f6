"""Packing a batch's blocks into tasks: pure, deterministic, and journalled, so that a rerun has the same (INV-3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forebay.values import Block


class BlockToPack(NamedTuple):
    """``host``: where a copy lies, "" if there is none; ``partitions``: those of which it holds records."""

    id: str
    bytes: int
    host: str = ""
    partitions: tuple[str, ...] = ()

    @classmethod
    def of(cls, block: Block) -> BlockToPack:
        meta = block.meta
        partitions = tuple(f"{range_.topic}/{range_.partition}" for range_ in meta.ranges)
        return cls(meta.id, block.handle.length, meta.host if block.local else "", partitions)


def pack(blocks: Sequence[BlockToPack], tasks: int) -> tuple[tuple[str, ...], ...]:
    """Cuts ``blocks``, given in order of acceptance, into ``tasks`` tasks of about equal bytes, none of them empty.

    A task holds blocks of one host, so that it can run there; with more hosts than ``tasks`` each has one task. Hosts are
    hints, order is a promise: where a partition's records would come out of order, because its receiver changed within the
    batch, the blocks are cut as they were accepted, whatever their hosts. ``tasks`` must be at least 1.
    """
    if tasks < 1:
        raise ValueError("a batch needs at least one task")
    by_host: dict[str, list[BlockToPack]] = {}
    for block in blocks:
        by_host.setdefault(block.host, []).append(block)
    if not _in_order(blocks, by_host):
        by_host = {"": list(blocks)}
    shares = _shares([(sum(block.bytes for block in held), len(held)) for held in by_host.values()], tasks)
    return tuple(run for held, share in zip(by_host.values(), shares, strict=True) for run in _cut(held, share))


def _in_order(blocks: Sequence[BlockToPack], by_host: dict[str, list[BlockToPack]]) -> bool:
    """Whether each partition's blocks, taken host by host, come as they were accepted."""
    if len(by_host) < 2:
        return True
    accepted = {block.id: place for place, block in enumerate(blocks)}
    last: dict[str, int] = {}
    for held in by_host.values():
        for block in held:
            place = accepted[block.id]
            for partition in block.partitions:
                if last.get(partition, -1) > place:
                    return False
                last[partition] = place
    return True


def _shares(hosts: Sequence[tuple[int, int]], tasks: int) -> list[int]:
    """How many tasks each of ``hosts`` (bytes, blocks) gets: one, and of the rest always the one with the largest tasks."""
    shares = [1] * len(hosts)
    for _ in range(tasks - len(hosts)):
        open_ = [index for index, (_, count) in enumerate(hosts) if shares[index] < count]
        if not open_:
            break
        shares[max(open_, key=lambda index: hosts[index][0] / shares[index])] += 1
    return shares


def _cut(blocks: Sequence[BlockToPack], tasks: int) -> list[tuple[str, ...]]:
    """``blocks``, in order, as at most ``tasks`` runs of about equal bytes."""
    total = sum(block.bytes for block in blocks)
    packed: list[tuple[str, ...]] = []
    run: list[str] = []
    before = 0
    for index, block in enumerate(blocks):
        run.append(block.id)
        before += block.bytes
        tasks_left = tasks - len(packed) - 1
        blocks_left = len(blocks) - index - 1
        full = before * tasks >= total * (len(packed) + 1)
        if blocks_left and tasks_left and (full or blocks_left <= tasks_left):
            packed.append(tuple(run))
            run = []
    if run:
        packed.append(tuple(run))
    return packed
