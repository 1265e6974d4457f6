"""A driver is killed at every point between an output's first row and the batch's completion: the rows are exactly right.

The processes are real and so are the stores; what is not here is Spark, which has no part in when an output commits.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import FencedError
from tests.support.kafka.polling import committed_values
from tests.support.processes.output_process import OutputProcess, Turn, expected
from tests.support.servers.postgresql import PostgresServer

POINTS = (
    "output.before-write", "output.mid-write", "output.before-commit", "output.after-commit", "driver.before-complete",
)  # fmt: skip
#: then a replay of batches 4 to 8, then two new ones
FIRST = [Turn(number) for number in range(1, 9)]
REPLAY = [Turn(number, replay=1) for number in range(4, 9)]
LAST = [Turn(9), Turn(10)]
ALL = [*FIRST, *REPLAY, *LAST]

Rows = list[tuple[int, int, int]]
COLUMNS = '"key" bytea, "value" bytea, "number" bigint, "place" bigint, "replay" bigint, "batch" varchar(100)'


class Place(ABC):
    """An output and how to look into it past its helper. ``replaces``: a replay takes the place of the first run."""

    kind: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = MappingProxyType({})
    replaces = True
    points: tuple[str, ...] = POINTS

    @abstractmethod
    def rows(self) -> Rows: ...


class Parquet(Place):
    kind = "parquet"
    points = (*POINTS, "output.aside")

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "table"
        self.arguments = (f"file://{self.folder}",)

    def rows(self) -> Rows:
        found: Rows = []
        for folder in self.folder.glob("batch=*"):
            for path in folder.glob("*.parquet"):
                columns = pq.read_table(path, partitioning=None).to_pydict()
                assert {int(folder.name.removeprefix("batch="))} == {Turn(n).batch_id for n in columns["number"]}
                found += zip(columns["number"], columns["place"], columns["replay"], strict=True)
        workshops = list((self.folder / "_forebay").iterdir())
        assert [list(workshop.iterdir()) for workshop in workshops] == [[]], "something was left"
        return sorted(found)


class Delta(Place):
    kind = "delta"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "table"
        self.arguments = (f"file://{self.folder}",)
        self.options = {"batch_column": "batch"}

    def rows(self) -> Rows:
        columns = DeltaTable(str(self.folder)).to_pyarrow_table().to_pydict()
        return sorted(zip(columns["number"], columns["place"], columns["replay"], strict=True))


class Sqlite(Place):
    kind = "sql"
    options = MappingProxyType({"batch_column": "batch", "chunk_rows": 15})

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.db"
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(f"CREATE TABLE flights ({COLUMNS.replace('bytea', 'blob')})")
        self.arguments = (f"sqlite:///{self.path}", "flights")

    def rows(self) -> Rows:
        with closing(sqlite3.connect(self.path)) as connection:
            return sorted(connection.execute('SELECT "number", "place", "replay" FROM flights'))


class Postgres(Place):
    kind = "sql"
    options = MappingProxyType({"key": ("number", "place"), "chunk_rows": 15})

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            connection.execute("DROP TABLE IF EXISTS flights, forebay_batches")
            connection.execute(f'CREATE TABLE flights ({COLUMNS}, PRIMARY KEY ("number", "place"))')
        self.arguments = (self.url, "flights")

    def rows(self) -> Rows:
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return sorted(connection.execute('SELECT "number", "place", "replay" FROM flights').fetchall())


class Topic(Place):
    kind = "kafka"
    replaces = False

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        broker.create_topic(topic, partitions=2)
        self.arguments = (dict(broker.options), topic)
        self.options = {"timeout_seconds": 30.0}

    def rows(self) -> Rows:
        return sorted(
            (number, place, replay)
            for number, place, replay in (
                map(int, value.split()) for value in committed_values(self.broker, self.topic, 2)
            )
        )


@pytest.fixture(
    params=[
        "parquet", "delta", "sqlite", "postgresql", pytest.param("kafka", marks=pytest.mark.kafka),
    ]
)  # fmt: skip
def place(request: pytest.FixtureRequest, tmp_path: Path, topic_name: Callable[[], str]) -> Iterator[Place]:
    match request.param:
        case "parquet":
            yield Parquet(tmp_path)
        case "delta":
            yield Delta(tmp_path)
        case "sqlite":
            yield Sqlite(tmp_path)
        case "postgresql":
            yield Postgres(request.getfixturevalue("postgresql"))
        case _:
            yield Topic(request.getfixturevalue("kafka_broker"), topic_name())


def test_a_kill_at_any_point_and_a_rerun_leave_each_row_once(
    place: Place, output_process: OutputProcess, tmp_path: Path
) -> None:
    """Each process is killed at its second arrival at a failpoint: the first is often in the rerun of what the one before it
    left. The same again in a replay, which replaces or adds as the output says."""
    completed = tmp_path / "completed"
    epoch = 0

    def run(turns: list[Turn], armed: str = "") -> int:
        nonlocal epoch
        epoch += 1  # each process is a driver of its own
        directory = tmp_path / f"hits-{epoch}"
        directory.mkdir()
        status = output_process.run(
            place.kind, place.arguments, dict(place.options), completed, turns, epoch, armed, directory
        )
        assert bool(armed) == bool(list(directory.glob("*.hit"))), armed
        return status

    for point in POINTS:
        assert run(FIRST, f"{point}=kill@2") == -signal.SIGKILL
    assert run(FIRST) == 0
    assert place.rows() == expected(FIRST)
    for point in place.points:
        assert run([*FIRST, *REPLAY], f"{point}=kill") == -signal.SIGKILL
    assert run(ALL) == 0
    assert place.rows() == expected([*FIRST[:3], *REPLAY, *LAST] if place.replaces else ALL)
    assert len(completed.read_text().split()) == len(ALL)


def test_a_driver_suspended_in_a_write_adds_nothing_when_it_continues(
    place: Place, output_process: OutputProcess, sleeper: OutputProcess, tmp_path: Path
) -> None:
    """INV-4: it is suspended with all rows written and not committed; a newer driver runs the same batch; it continues. Only one
    of the two commits, and the older one is refused from then on."""
    options = dict(place.options)
    if place.kind == "sql":
        options |= {"connect_seconds": 1.0, "idle_seconds": 1.0}  # how long the sleeper's lock is waited for
    hits = tmp_path / "hits"
    hits.mkdir()
    one, two = [Turn(1)], [Turn(1), Turn(2)]

    def newer(turns: list[Turn]) -> int:
        return output_process.run(place.kind, place.arguments, options, tmp_path / "newer", turns, epoch=2)

    sleeper.begin(place.kind, place.arguments, options, tmp_path / "older", one, 1, "output.before-commit=stop", hits)
    hit = hits / "output.before-commit.hit"
    deadline = time.monotonic() + 60
    while not hit.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        newer(one)  # SQLite's lock turns it away
    finally:
        os.kill(int((hits / "pid").read_text()), signal.SIGCONT)
    sleeper.end()
    assert newer(two) == 0
    assert place.rows() == expected(two)
    assert sleeper.run(place.kind, place.arguments, options, tmp_path / "older", [Turn(1, replay=1)], epoch=1) == (
        FencedError.exit_code
    )
    assert place.rows() == expected(two)
