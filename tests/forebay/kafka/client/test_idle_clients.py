"""Idle clients are kept for the next caller, within bounds, and never used in a forked child."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from forebay.kafka.client.idle_clients import IdleClients
from forebay.kafka.consume import block_ranges, fetching
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.support.processes.child import exit_code_of_child
from tests.support.state.again import produce, taken_in
from tests.support.state.columns import column_values

ROOT = Path(__file__).resolve().parents[4]
RECORDS = 20


class Client:
    def __init__(self, name: str, closed: list[str]) -> None:
        self.name = name
        self._closed = closed

    def close(self) -> None:
        self._closed.append(self.name)


def test_idle_clients_are_bounded_in_number_and_time() -> None:
    """INV-6."""
    clock, closed = ManualClock(), list[str]()
    kept: IdleClients[Client] = IdleClients(3, 60.0, clock)
    for name in "abcd":
        kept.keep("k", Client(name, closed))
    assert closed == ["a"]
    assert kept.take("other") is None
    newest = kept.take("k")
    assert newest is not None
    assert newest.name == "d"
    clock.advance(59)
    kept.keep("k", newest)
    clock.advance(1)
    kept.sweep()
    assert closed == ["a", "b", "c"]
    assert len(kept) == 1
    kept.clear()
    assert closed == ["a", "b", "c", "d"]


def test_no_client_is_kept_with_a_bound_of_none() -> None:
    closed = list[str]()
    kept: IdleClients[Client] = IdleClients(0, 60.0)
    kept.keep("k", Client("a", closed))
    assert closed == ["a"]
    assert len(kept) == 0
    kept.clear()


def test_forked_child_begins_with_no_client_even_if_a_thread_was_using_the_pool() -> None:
    """The thread does not exist in the child, so nothing would release its lock there."""
    closed = list[str]()
    kept: IdleClients[Client] = IdleClients(2, 60.0)
    kept.keep("k", Client("parent", closed))

    def use_in_child() -> int:
        if len(kept) or kept.take("k") is not None:
            return 1
        kept.keep("k", Client("child", closed))
        kept.clear()
        return 0 if closed == ["child"] else 2

    with kept._lock:
        assert exit_code_of_child(use_in_child) == 0
    taken = kept.take("k")
    assert taken is not None
    assert taken.name == "parent"
    kept.clear()


@pytest.mark.kafka
@pytest.mark.parametrize("native", [True, False], ids=["native", "without-native-code"])
def test_ranges_are_read_in_a_process_and_in_its_forked_child(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str], native: bool
) -> None:
    """Spark's workers fork. The process is a new one, because other tests' clients may work in this one."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    produce(kafka_broker.options, TopicPartition(topic, 0), RECORDS)
    script = f"import json, sys; from {__name__} import read_in_child; read_in_child(*json.loads(sys.argv[1]))"
    given = json.dumps([dict(kafka_broker.options), topic, native])
    done = subprocess.run([sys.executable, "-c", script, given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def read_in_child(options: Mapping[str, str], topic: str, native: bool) -> None:
    """Read a block's range and a span, then again in a child, then again here."""
    if not native:
        mock.patch.object(fetching, "library", return_value=None).start()
    access, tp = KafkaAccess(options, "forebay.s"), TopicPartition(topic, 0)
    wanted, rows = taken_in(options, tp)

    def offsets(begin: int, end: int) -> list[int]:
        batches = read_range(access, OffsetRange(topic, 0, begin, end, ""), Reading())
        return [offset for batch in batches for offset in column_values(batch, "offset")]

    def read(begin: int, end: int) -> bool:
        (found,) = block_ranges.read_ranges(access, [wanted], False)
        same = pa.Table.from_batches(list(found.batches)) == pa.Table.from_batches([rows])
        return same and len(block_ranges.kept_readers) == 1 and offsets(begin, end) == list(range(begin, end))

    assert read(0, 5)
    assert exit_code_of_child(lambda: int(not read(5, 10))) == 0
    assert read(5, 10)
