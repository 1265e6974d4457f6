"""The commands of an observer in a terminal, against one small stream that runs for all tests of this module."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from forebay.kafka.embedded.broker import MockBroker
from tests.support.processes.cluster import Cluster
from tests.support.processes.terminal import Terminal

TOPIC = "flights"
_FOREBAY = str(Path(sys.executable).with_name("forebay"))
_ROOT = str(Path(__file__).parents[2])


class Stream:
    """A running stream, into which records flow."""

    def __init__(self, cluster: Cluster, producer: Producer) -> None:
        self.cluster = cluster
        self.config = str(cluster.folder / "forebay.toml")
        self._producer = producer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        while not self._stop.wait(0.1):
            for number in range(10):
                self._producer.produce(TOPIC, json.dumps({"carrier": "UA", "n": number}).encode(), key=f"k{number}")
                self._producer.produce(TOPIC, b"\x1b[2J not JSON", key=b"bad")
            self._producer.flush(30.0)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60.0)

    def terminal(self, *arguments: str, width: int = 100, height: int = 32, **environment: str) -> Terminal:
        return Terminal(
            [_FOREBAY, "--config", self.config, *arguments],
            width=width, height=height, environment={"PYTHONPATH": _ROOT, **environment},
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process, without a terminal."""
        return self.cluster.command(*arguments)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    with MockBroker() as broker:
        broker.create_topic(TOPIC)
        # blocks stay for a while after their batch, to be looked at
        folder = tmp_path_factory.mktemp("stream")
        with Cluster(
            folder, broker.options, [TOPIC], receivers=1, wal={"retention": "1h"}, kafka={"session.timeout.ms": "10000"}
        ) as cluster:
            made = Stream(cluster, Producer({**broker.options, "log_level": 0}))
            try:
                cluster.wait(lambda: (s := cluster.status()) and s.batches_completed > 0, "a batch")
                yield made
            finally:
                made.close()


def taken_in(text: str) -> int:
    found = re.search(r"([\d,]+) records taken in", text)
    return int(found[1].replace(",", "")) if found else -1


def test_top_is_live_and_follows_keys_and_sizes(stream: Stream) -> None:
    with stream.terminal("top") as terminal:
        text = terminal.wait(lambda text: taken_in(text) > 0, "the first view")
        assert text.splitlines()[0].startswith("stream running  ")
        assert "Kafka ─▶" in text and "committed" in text and "partitions 4 active" in text
        assert "\x1b[3" in terminal.raw.decode(), "colours"
        before = taken_in(text)
        terminal.wait(lambda text: taken_in(text) > before, "an update")
        terminal.wait(lambda text: re.search(r"\d+ completed +\d+", text), "batches")
        terminal.type("\x1b[C")
        terminal.wait(lambda text: re.search(r"^r1 ", text, re.MULTILINE), "the list of receivers")
        terminal.type("p")
        terminal.wait(lambda text: "the display is paused" in text, "the pause")
        terminal.type("p")
        terminal.wait(lambda text: "the display is paused" not in text, "the end of the pause")
        terminal.resize(44, 12)
        text = terminal.wait(lambda text: "committed" in text and "─▶" not in text, "the small view")
        assert terminal.lines[-1].startswith("q quit")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.echoes, "the terminal is as before"
        assert b"\x1b[?1049l" in terminal.raw and terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")


def test_top_restores_the_terminal_when_it_is_terminated(stream: Stream) -> None:
    with stream.terminal("top", NO_COLOR="1") as terminal:
        terminal.wait(lambda text: taken_in(text) > 0, "the first view")
        assert not re.search(rb"\x1b\[(?:\d+;)*3[1-7]m", terminal.raw), "no colour with NO_COLOR"
        terminal.type("\x03")
        assert terminal.end() == 0
        assert terminal.echoes and b"\x1b[?1049l" in terminal.raw


def test_top_in_a_pipe_is_one_snapshot_without_escapes(stream: Stream) -> None:
    done = stream.run("top")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert taken_in(done.stdout) > 0 and "receivers: 1 of 1" in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert json.loads(stream.run("--json", "top").stdout)["stream"] == "stream"


def test_tap_prints_records_until_it_is_interrupted(stream: Stream) -> None:
    with stream.terminal("tap", "--where", "carrier=UA", "--show", "n", width=120) as terminal:
        text = terminal.wait(lambda text: text.count(" n=") > 3, "records")
        assert "not JSON" not in text and f" {TOPIC}/" in text
        terminal.type("\x03")
        assert terminal.end() == 130
        terminal.wait(lambda text: "records shown" in text, "the report")


def test_tap_shows_hostile_records_as_text(stream: Stream) -> None:
    done = stream.run("tap", "--last", "5", "--key", "bad")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    assert "\x1b" not in done.stdout and done.stdout.count("bad  \\x1b[2J not JSON") == 5
    (line,) = stream.run("tap", "--limit", "1", "--json").stdout.splitlines()
    assert json.loads(line)["topic"] == TOPIC
    assert "|.[2J not JSON|" in stream.run("tap", "--limit", "1", "--key", "bad", "--format", "hex").stdout


def test_lists_of_receivers_hosts_and_blocks(stream: Stream) -> None:
    receivers = json.loads(stream.run("receivers", "--json").stdout)
    assert [one["receiver_id"] for one in receivers["receivers"]] == ["r1"]
    assert json.loads(stream.run("receivers", "--json", "--text", "other").stdout)["total"] == 0
    assert "0.1.0" not in stream.run("hosts").stdout and "active" in stream.run("hosts").stdout
    done = stream.run("blocks", "--json", "--limit", "2", "--partition", f"{TOPIC}/0")
    blocks = json.loads(done.stdout)["blocks"]
    assert len(blocks) == 2 and blocks[0]["created_ms"] >= blocks[1]["created_ms"]
    name = blocks[0]["block_id"]
    shown = stream.run("blocks", name).stdout
    assert f"Block {name}" in shown and "place in the WAL" in shown and f"{TOPIC}/0" in shown
    records = stream.run("blocks", name, "--records", "3")
    assert len(records.stdout.splitlines()) == 3, records.stderr
    assert "\x1b" not in records.stdout
    assert stream.run("blocks", "--offset", "1").returncode == 2


def test_doctor_and_bundle_of_a_running_stream(stream: Stream, tmp_path: Path) -> None:
    done = stream.run("doctor", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, [one for one in found.values() if one["outcome"] not in ("fine", "note", "unknown")]
    assert found["driver: clock"]["outcome"] == "fine"
    assert "a Forebay service listens there" in found["driver: port"]["detail"]
    assert "stream stream is running" in found["driver"]["detail"]
    target = tmp_path / "bundle.tar.gz"
    assert stream.run("debug", "bundle", "--output", str(target), "--no-doctor").returncode == 0
    with tarfile.open(target) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        threads = archive.extractfile(next(one for one in archive if one.name.endswith("threads-of-driver.json")))
        assert threads is not None
        stacks = json.loads(threads.read())
    assert {"status.json", "overview.json", "batches.json", "journal.json", "status-of-agent.json"} <= names
    assert {"decide", "batch-timer"} <= {one["name"] for one in stacks["threads"]}


def test_top_shows_the_age_of_the_last_answer_and_recovers_when_the_driver_is_killed(stream: Stream) -> None:
    with stream.terminal("top") as terminal:
        terminal.wait(lambda text: taken_in(text) > 0, "the first view")
        stream.cluster.kill9("driver")
        text = terminal.wait(lambda text: "no answer for" in text, "the loss of the driver")
        assert "Kafka ─▶" in text, "the last view stays"
        stream.cluster.restart("driver")
        terminal.wait(lambda text: "no answer for" not in text and taken_in(text) > 0, "the driver")
        terminal.type("q")
        assert terminal.end() == 0
