"""Keyed states as observers see them: what the newest manifest says, and damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deploy.main import main
from driver.batches.job.batch import Batch
from driver.http.observation.keyed_states import KeyedStates, ReadKeyedStates
from driver.http.observation.lists import Query
from driver.journal.transitions.keyed_states import states_rewound
from forebay import messages as m
from forebay.client import Client
from forebay.kafka.embedded.broker import MockBroker
from tests.driver.batches.job.test_keyed_state import run_locally
from tests.support.processes.running_driver import local_settings, running
from tests.support.state.columns import schema_of
from tests.support.state.states import StateLine, counts, table
from wal.storage import open_storage

NUMBERS = schema_of(key=pa.string(), n=pa.int64())
KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def line(tmp_path: Path) -> StateLine:
    return StateLine(tmp_path, run_locally)


def reader(line: StateLine) -> KeyedStates:
    return KeyedStates(open_storage(line.stored.wal_url))


def listed(line: StateLine, states: KeyedStates | None = None, **query: Any) -> m.StatesAnswer:
    return (states or reader(line)).answer(ReadKeyedStates().read(line.state), Query(**query))


def writes(name: str) -> Callable[[Batch], None]:
    """Return a job that writes one key of the state ``name``."""
    return lambda batch: batch.state(name, NUMBERS, "key").write(pa.table({"key": ["x"], "n": [1]}, NUMBERS))


def test_entry_has_what_the_newest_version_holds(line: StateLine) -> None:
    """The number of keys is exact as long as no shard has a delta; then it is a bound."""
    line.run(1, lambda batch: counts(batch).write(table(**dict.fromkeys(KEYS, 1))))
    (one,) = listed(line).states
    assert (one.name, one.key, one.shards, one.versions) == ("counts", ("key",), 4, 1)
    assert (one.keys_max, one.keys_exact, one.batch_id) == (len(KEYS), True, line.work(1).batch_id)
    assert one.columns == ("key string", "count int64") and not one.detail
    manifest = line.state.keyed["counts"].versions[0].manifest
    assert one.bytes == sum(
        path.stat().st_size for path in (line.stored.root / "wal" / manifest).parent.glob("*.arrow")
    )
    line.run(2, lambda batch: counts(batch).write(table(k0=9)))
    (two,) = listed(line).states
    assert (two.keys_max, two.keys_exact, two.versions) == (len(KEYS) + 1, False, 2)
    assert (two.oldest_batch_id, two.batch_id) == (one.batch_id, line.work(2).batch_id)
    assert two.updated_ms == line.work(2).time_ms and two.files == one.files + 1


def test_pages_continue_by_name_and_read_each_manifest_once(line: StateLine) -> None:
    for number, name in enumerate("ba", start=1):
        line.run(number, writes(name))
    states = reader(line)
    first = listed(line, states, limit=1)
    assert (first.total, first.next, [s.name for s in first.states]) == (2, "a", ["a"])
    assert [s.name for s in listed(line, states, limit=1, after="a").states] == ["b"]
    assert [s.name for s in listed(line, states, text="B").states] == ["b"]
    for known in line.state.keyed.values():
        (line.stored.root / "wal" / known.versions[-1].manifest).unlink()
    assert [s.name for s in listed(line, states).states if not s.detail] == ["a", "b"]


def test_damaged_manifest_is_named_and_the_other_states_are_listed(line: StateLine) -> None:
    """INV-5: it is no state without keys."""
    for number, name in enumerate("ab", start=1):
        line.run(number, writes(name))
    path = line.stored.root / "wal" / line.state.keyed["a"].versions[-1].manifest
    path.write_bytes(path.read_bytes()[:-1])
    damaged, whole = listed(line).states
    assert "the manifest is not the one that the journal names" in damaged.detail and damaged.batch_id
    assert (whole.keys_max, whole.detail) == (1, "")


def test_state_whose_versions_a_replay_replaces_says_so(line: StateLine) -> None:
    line.run(1, lambda batch: counts(batch).write(table(a=1)))
    states_rewound(line.state, line.work(1).batch_id)
    (entry,) = listed(line).states
    assert (entry.replaced, entry.versions, entry.detail) == (1, 0, "a replay replaces all of its versions")


def test_stream_without_a_state_has_an_empty_list(line: StateLine) -> None:
    assert KeyedStates(None).answer({}, Query()) == m.StatesAnswer(total=0)


def test_command_and_client_list_the_states_of_a_running_driver(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = local_settings(tmp_path, mock_broker, topic_name())

    def job(batch: Batch) -> None:
        batch.state("totals", NUMBERS, "key", shards=2).write(pa.table({"key": ["all"], "n": [batch.records]}, NUMBERS))

    with running(settings, job) as driver:
        driver.take_in(4)
        driver.until(lambda now: now.batches_completed == 1)
        config = tmp_path / "forebay.toml"
        config.write_text(
            f'stream = "s"\ndata = "{tmp_path}"\n[kafka]\ntopics = ["t"]\n"bootstrap.servers" = "127.0.0.1:1"\n'
            f'[driver]\nurl = "{driver.driver.url}"\njob = "jobs:process"\n'
        )
        with Client(driver.driver.url) as client:
            (entry,) = client.each_state()
        assert main(["--config", str(config), "states", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert main(["--config", str(config), "states", "--text", "tot"]) == 0
        text = capsys.readouterr().out
    assert (entry.name, entry.keys_max, entry.keys_exact, entry.versions) == ("totals", 1, True, 1)
    assert shown["total"] == 1 and shown["states"][0]["keys_max"] == 1 and shown["states"][0]["name"] == "totals"
    assert "totals" in text and str(entry.batch_id) in text
