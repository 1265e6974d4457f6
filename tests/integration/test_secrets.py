"""Secrets of a running stream are found nowhere but in their own files."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.http.client import Client
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.messages import StatusAnswer
from forebay.model.errors import AccessError
from tests.integration.test_spark import await_spark
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PASSWORD = "canary-of-the-password-7f3a"
KEY = base64.b64encode(b"canary-of-the-encryption-key-32b").decode()
TOKENS = {
    role: f"canary-of-the-{role}-token-91c2" for role in ("receiver:r1", "agent", "task", "query", "reader", "operator")
}
CANARIES = (PASSWORD, KEY, "canary-of-the")

#: fails in a task and in the driver, with tracebacks through Python and Java, before it does its work
JOB = """\
import logging

import jobs


def job(batch):
    failed = jobs.HERE / "failed"
    if not failed.exists():
        failed.touch()
        logging.getLogger("job").info("a batch is %r, its rows are %r", batch, batch._rows._plan)
        batch.df.mapInArrow(fail, batch.df.schema).count()
    jobs.by_dataframe(batch)


def fail(rows):
    for batch in rows:
        raise RuntimeError("failing on request in a task")
        yield batch
"""


def command_lines() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (process / "cmdline").read_bytes()


def files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_tokens_passwords_and_keys_are_in_no_log_status_trace_event_or_process_list(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """A Spark job that fails in a task first reads its blocks from the agent, by its token, and all is found guarded."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    tokens, keys = tmp_path / "tokens", tmp_path / "keys"
    for file, lines in ((tokens, [f"{who} {token}" for who, token in TOKENS.items()]), (keys, [f"one {KEY}"])):
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n")
    (tmp_path / "leaky.py").write_text(JOB)
    (tmp_path / "events").mkdir()
    cluster = Cluster(
        tmp_path, {**kafka_broker.options, "sasl.username": "forebay", "sasl.password": PASSWORD}, [topic], receivers=1,
        engine="spark", job="leaky:job", start=False,
        driver={"batch_interval": "500ms"},
        wal={"key_file": str(keys)},
        security={"token_file": str(tokens)},
        spark={
            "spark.eventLog.enabled": True, "spark.eventLog.dir": f"file://{tmp_path}/events",
            "spark.local.dir": f"{tmp_path}/spark", "spark.ui.enabled": False,
            # a job of seconds is over before anything is worth compiling twice
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
        },
    )  # fmt: skip
    cluster.forks = False
    with cluster:
        # the tasks' own host has no copies, as far as the driver knows: they ask the agent
        cluster.start("driver", environment={"FOREBAY__AGENT__BLOCKS": f"{tmp_path}/elsewhere"})
        cluster.start_all()
        await_spark(cluster)
        with Flow(kafka_broker.options, topic) as flow:
            cluster.wait(lambda: flow.records >= 100, "records")
            flow.stop()
            cluster.wait(lambda: (s := cluster.status()) and s.tiers.get("agent"), "a block read from the agent", 250.0)
        with pytest.raises(AccessError):
            Client(cluster.driver_url).get("/v1/status", StatusAnswer)
        shown = [cluster.command(*line) for line in (("status", "--json"), ("validate",), ("lag",))]
        shown_lines = b"\n".join(command_lines())
        for name in cluster.names:  # no file comes or goes while all are read
            os.killpg(cluster.process(name).pid, signal.SIGSTOP)
            cluster.pause(name)
        assert "failing on request in a task" in cluster.log("driver"), "no traceback to look through"
        for canary in CANARIES:
            assert canary.encode() not in shown_lines
            for result in shown:
                assert canary not in result.stdout + result.stderr, result.args
        own = {tokens, keys, tmp_path / "forebay.toml"}
        searched = [path for path in files_below(tmp_path) if path not in own]
        found = [path for path in searched for canary in CANARIES if canary.encode() in path.read_bytes()]
        assert not found
        assert {"events", "wal", "journal", "blocks"} <= {path.relative_to(tmp_path).parts[0] for path in searched}
        for folder in ("wal", "journal", "blocks"):
            for path in [tmp_path / folder, *(tmp_path / folder).rglob("*")]:
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has {mode:o}"
