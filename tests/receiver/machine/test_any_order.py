"""The machine with a small driver, under any order of answers, losses, refusals and rebalances.

The simulation does the same with whole systems. This test is quick and names the violated rule.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.messages import BlockResult, ClaimGrant, StaleRange
from forebay.model.units import Size
from forebay.model.values import TopicPartition
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.pending_block import PendingBlock
from tests.receiver.stage import P0, P1, Stage, columns, offsets_of, stored, view

PARTITIONS = (P0, P1)


class World:
    """Driver, group, log and stores around one machine. Every message may be lost, late or repeated."""

    def __init__(self, **limits: Any) -> None:
        self.stage = Stage(memory=Size(5000), **limits).register()
        self.position = dict.fromkeys(PARTITIONS, 0)
        self.token = dict.fromkeys(PARTITIONS, 1)
        self.accepted: dict[str, PendingBlock] = {}
        self.taken: dict[TopicPartition, list[int]] = {tp: [] for tp in PARTITIONS}
        self.written: dict[tuple[TopicPartition, int, int], int] = {}
        self.storing: list[PendingBlock] = []
        self.pending_blocks: dict[int, PendingBlock] = {}
        self.reading: dict[TopicPartition, tuple[int, int]] = {}  # generation, next offset
        self.assigned: set[TopicPartition] = set()
        self.asked: list[act.Action] = []
        self.answers: list[inp.Input] = []
        self.committed = dict.fromkeys(PARTITIONS, 0)
        self.paused: set[TopicPartition] = set()

    def collect(self) -> None:
        """Perform what the service performs immediately; keep the requests."""
        actions, self.stage.actions = self.stage.actions, []
        for action in actions:
            if isinstance(action, act.StoreBlock):
                self._write(action.pending)
            elif isinstance(action, act.StartPartitions):
                for start in action.starts:
                    self.reading[start.tp] = (start.generation, start.offset)
                    self.paused.discard(start.tp)
            elif isinstance(action, act.Pause):
                self.paused.update(action.partitions)
            elif isinstance(action, act.Resume):
                self.paused.difference_update(action.partitions)
            elif isinstance(action, act.CommitAsync):
                for tp, point in action.positions.items():
                    assert point.offset <= self.position[tp], "INV-1: committed beyond the durable position"
            elif isinstance(action, act.Exit):
                raise AssertionError(action.reason)
            elif isinstance(action, act.Lookup | act.CommitSync | act.Claim | act.Report):
                self.asked.append(action)

    def _write(self, pending: PendingBlock) -> None:
        self.pending_blocks[pending.sequence] = pending
        self.storing.append(pending)
        for part in pending.ranges:
            for offset in range(part.from_offset, part.until_offset):
                other = self.written.setdefault((part.tp, part.token, offset), pending.sequence)
                assert other == pending.sequence, f"rule 4: {part.tp}@{offset} written twice under one token"

    def tell(self, event: inp.Input) -> None:
        self.stage.tell(event)
        self.collect()

    def arrive(self, action: act.Action) -> None:
        """Deliver a request to the driver or the broker, and send its answer."""
        if isinstance(action, act.Lookup):
            views = tuple(view(tp, self.position[tp], self.token[tp]) for tp in action.message.partitions)
            self.answers.append(inp.LookupAnswered(action.request, views))
        elif isinstance(action, act.CommitSync):
            for tp, point in action.positions.items():
                assert point.offset <= self.position[tp], "INV-1"
            errors = {tp: "not assigned" for tp in action.positions if tp not in self.assigned}
            self.answers.append(inp.CommitSynced(action.request, errors))
        elif isinstance(action, act.Claim):
            grants = []
            for ask in action.message.claims:
                tp = TopicPartition(ask.topic, ask.partition)
                granted = ask.known_token == self.token[tp]
                self.token[tp] += granted
                grants.append(ClaimGrant(granted=granted, view=view(tp, self.position[tp], self.token[tp])))
            self.answers.append(inp.Claimed(action.request, tuple(grants)))
        elif isinstance(action, act.Report):
            results = []
            for block in action.message.blocks:
                stale = tuple(
                    StaleRange(topic=r.topic, partition=r.partition, reason="token", token=0, position=0)
                    for r in block.meta.ranges
                    if r.token != self.token[r.tp] or r.from_offset != self.position[r.tp]
                )
                if block.id not in self.accepted and not stale:
                    pending = self.accepted[block.id] = self.pending_blocks[block.meta.sequence]
                    for r in block.meta.ranges:
                        self.position[r.tp] = r.until_offset
                        self.taken[r.tp] += offsets_of(pending, r.tp)
                accepted = block.id in self.accepted
                results.append(BlockResult(block_id=block.id, accepted=accepted, stale=() if accepted else stale))
            self.answers.append(inp.ReportAnswered(action.request, tuple(results)))

    def poll(self, tp: TopicPartition, count: int) -> None:
        if tp in self.reading and tp in self.assigned:
            generation, offset = self.reading[tp]
            self.reading[tp] = (generation, offset + count)
            self.tell(inp.Polled([columns(tp, generation, range(offset, offset + count), 40)]))

    def steal(self, tp: TopicPartition, ahead: int) -> None:
        """Let another receiver claim the partition and take in some records."""
        self.token[tp] += 1
        until = self.position[tp] + ahead
        self.taken[tp] += range(self.position[tp], until)
        self.position[tp] = until

    def settle(self) -> None:
        """Deliver every message from now on: all polled records of owned partitions must be taken in within bounded rounds."""
        for tp in PARTITIONS:
            if tp not in self.assigned:
                self.assign(tp)
        for _ in range(80):
            self.stage.wait(1.0)
            self.collect()
            self._drain_messages()
        for tp in PARTITIONS:
            self.poll(tp, 3)
        for _ in range(20):
            self.stage.wait(1.0)
            self.collect()
            self._drain_messages()
        for tp in PARTITIONS:
            assert self.position[tp] == self.reading[tp][1], f"{tp} makes no progress"

    def _drain_messages(self) -> None:
        while self.storing or self.asked or self.answers:
            while self.storing:
                pending = self.storing.pop(0)
                self.tell(inp.BlockStored(pending.sequence, stored(pending)))
            while self.asked:
                self.arrive(self.asked.pop(0))
            while self.answers:
                self.tell(self.answers.pop(0))

    def assign(self, tp: TopicPartition) -> None:
        self.assigned.add(tp)
        self.tell(inp.Assigned((tp,)))

    def leave(self, tp: TopicPartition, how: str) -> None:
        if tp in self.assigned:
            self.assigned.discard(tp)
            self.tell(inp.Lost((tp,)) if how == "lost" else inp.Revoked((tp,)))
            if how == "revoked":  # the callback ends at its deadline at the latest
                self.stage.wait(20.0)
                self.collect()


WHICH = st.integers(0, 5)
TP = st.sampled_from(PARTITIONS)
STEP = st.one_of(
    st.tuples(st.just("assign"), TP),
    st.tuples(st.just("poll"), TP, st.integers(1, 8)),
    st.tuples(st.just("poll"), TP, st.integers(1, 8)),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 1.0, 8.0, 31.0])),
    st.tuples(st.just("store"), WHICH),
    st.tuples(st.just("arrive"), WHICH),
    st.tuples(st.just("arrive"), WHICH),
    st.tuples(st.just("arrive-and-stay"), WHICH),  # a repeated request
    st.tuples(st.just("lose-request"), WHICH),
    st.tuples(st.just("answer"), WHICH),
    st.tuples(st.just("answer"), WHICH),
    st.tuples(st.just("answer-twice"), WHICH),
    st.tuples(st.just("lose-answer"), WHICH),
    st.tuples(st.just("steal"), TP, st.integers(0, 3)),
    st.tuples(st.just("leave"), TP, st.sampled_from(["lost", "revoked"])),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=5, max_size=90))
def test_no_order_of_events_loses_or_repeats_a_record(steps: list[tuple[object, ...]]) -> None:
    """INV-1, INV-2 and rule 4 hold after any steps. When messages arrive again, every partition makes progress."""
    play_all(World(), steps)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=5, max_size=90))
def test_no_order_of_events_with_rates_loses_or_repeats_a_record(steps: list[tuple[object, ...]]) -> None:
    """INV-1, INV-2 and rule 4 hold, and no rate pauses a partition for good."""
    world = World(max_rate_per_partition=2, max_rate=3)
    play_all(world, steps)
    assert not world.paused


def play_all(world: World, steps: list[tuple[object, ...]]) -> None:
    for tp in PARTITIONS:
        world.assign(tp)
    world._drain_messages()
    for name, *rest in steps:
        play(world, str(name), rest)
    world.settle()
    for tp in PARTITIONS:
        assert world.taken[tp] == list(range(world.position[tp])), f"INV-2: {tp}"
    assert world.stage.machine.buffered_bytes == 0


def play(world: World, name: str, rest: list[object]) -> None:
    first, second = rest[0], rest[1] if len(rest) > 1 else None
    queues: dict[str, list[Any]] = defaultdict(
        list, store=world.storing, arrive=world.asked, lose=world.asked, answer=world.answers
    )
    if name == "assign" and first not in world.assigned:
        world.assign(first)  # type: ignore[arg-type]
    elif name == "poll":
        world.poll(first, second)  # type: ignore[arg-type]
    elif name == "wait":
        world.stage.wait(first)  # type: ignore[arg-type]
        world.collect()
    elif name == "steal":
        world.steal(first, second)  # type: ignore[arg-type]
    elif name == "leave":
        world.leave(first, second)  # type: ignore[arg-type]
    else:
        queue = world.answers if name.endswith("answer") or name.startswith("answer") else queues[name.split("-")[0]]
        if not queue:
            return
        place = first % len(queue)  # type: ignore[operator]
        item: Any = queue[place] if name in ("arrive-and-stay", "answer-twice") else queue.pop(place)
        if name == "store":
            world.tell(inp.BlockStored(item.sequence, stored(item)))
        elif name.startswith("arrive"):
            world.arrive(item)
        elif name.startswith("answer"):
            world.tell(item)
