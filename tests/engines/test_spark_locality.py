"""Tasks ask Spark for the hosts that hold their blocks."""

from __future__ import annotations

from typing import Any

import pytest

from driver.batches.tasks.reading import TaskBlocks, tasks_in
from driver.spark.blocks import TaskPartitions, preferred_hosts
from forebay.model.values import Handle
from wal.reading import BlockReference

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def reference(name: str, host: str, size: int = 10, local: bool = True, others: tuple[str, ...] = ()) -> BlockReference:
    return BlockReference(name, "s", (), 5, Handle("s/r1/1.seg", 64, size, 7), host, local, other_hosts=others)


def test_a_task_prefers_the_hosts_that_keep_the_most_of_it() -> None:
    hosts = {"h1", "h2", "h3"}
    assert preferred_hosts([reference("a", "h1"), reference("b", "h2", 30), reference("c", "h1")], hosts) == ("h2",)
    assert preferred_hosts([reference("a", "h2"), reference("b", "h1")], hosts) == ("h1", "h2")
    assert preferred_hosts([reference("a", "h1", local=False)], hosts) == ()
    twice = [reference("a", "h1", others=("h3",)), reference("b", "gone", others=("h3",))]
    assert preferred_hosts(twice, hosts) == ("h3",)
    assert preferred_hosts(twice[1:], {"h1"}) == ()


def test_each_task_is_a_partition_with_its_hosts(spark: Any) -> None:
    """A host whose name Spark would take for something else is not named: the batch would fail by it. Nor is one where
    Spark has no executor: tasks would wait for it."""
    tasks = [
        [reference("a", "h1")],
        [reference("b", "executor_1")],
        [reference("c", "h2"), reference("d", "h2")],
        [reference("e", "gone")],
    ]
    partitions = TaskPartitions(spark, tasks, {"h1", "h2", "h3", "executor_1"})
    scala = partitions._rows._scala
    hosts = [[*_items(scala.preferredLocations(partition))] for partition in scala.partitions()]
    assert hosts == [["h1"], [], ["h2"], []]
    found = [TaskBlocks.decode(data) for data in partitions.rdd().collect()]
    assert found == [TaskBlocks(number, tuple(task)) for number, task in enumerate(tasks)]
    frame = partitions.frame().mapInArrow(lambda batches: batches, "value binary")
    assert frame.rdd.getNumPartitions() == 4
    assert list(tasks_in(frame.toArrow().to_batches())) == found


def _items(sequence: Any) -> list[str]:
    return [sequence.apply(index) for index in range(sequence.length())]
