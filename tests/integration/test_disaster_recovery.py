"""The commands of *Disaster recovery* in docs/operations/recovery.md, line by line, against real disasters."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.integration.test_rebuild import finish, lose_journal, records_flowing
from tests.support.processes.cluster import AHEAD, Cluster

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "recovery.md"
_LINE = re.compile(r"(?P<command>[^#]+?)\s*(?:#\s*(?P<codes>[01](?: or [01])*): .*|#.*)?")


def written_commands() -> list[list[tuple[list[str], set[int]]]]:
    """Of each block of the section the commands, with the exit codes written after them."""
    section = PAGE.read_text().split("\n## Disaster recovery\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    found = []
    for block in blocks:
        lines = [_LINE.fullmatch(line) for line in block.splitlines()]
        assert all(lines), block
        found.append(
            [
                (shlex.split(line["command"]), {int(code) for code in (line["codes"] or "0").split(" or ")})
                for line in lines
                if line is not None
            ]
        )
    return found


def follow(cluster: Cluster, commands: list[tuple[list[str], set[int]]]) -> None:
    """Runs each as a person would. What stops and starts units does the same to the test's processes."""
    stopped = [name for name in ("driver", "agent", "r1") if cluster._services[name].process is None]
    for (program, *arguments), codes in commands:
        if program == "systemctl":
            if arguments[0] == "start":
                for name in stopped:
                    cluster.restart(name)
                cluster.wait(lambda: not cluster.health(), "the driver to run")
            continue
        assert program == "forebay"
        done = cluster.command(*arguments)
        assert done.returncode in codes, f"{shlex.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr


def test_there_is_a_block_for_each_disaster() -> None:
    wal, journal, whole_wal = written_commands()
    assert ["forebay", "recover", "--lost-wal", "--apply"] in [command for command, _ in whole_wal]
    assert ["forebay", "recover", "--apply"] in [command for command, _ in wal]
    assert ["forebay", "journal", "rebuild", "--apply"] in [command for command, _ in journal]


def test_damaged_wal_is_whole_after_the_commands_of_the_page(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3, INV-5."""
    with records_flowing(tmp_path, kafka_broker, topic_name(), wal={"segment_size": "1B"}, driver=AHEAD) as (
        cluster,
        flow,
    ):
        cluster.killed_behind_a_held_job(flow, "driver", "agent", "r1")
        needed = cluster.needed()
        folder = Path(cluster.wal_storage.url.removeprefix("file://"))
        (folder / needed[0].handle.path).unlink()  # its local copy is there
        cluster.damage(needed[1])
        (tmp_path / "blocks" / "stream" / f"{needed[1].id}.block").unlink(missing_ok=True)  # and of this there is none
        (tmp_path / "hold").unlink()
        follow(cluster, written_commands()[0])
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def test_lost_journal_is_rebuilt_by_the_commands_of_the_page(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2: what may have run twice is named."""
    with records_flowing(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        before = lose_journal(cluster)
        follow(cluster, written_commands()[1])
        finish(cluster, flow, before)


def test_new_wal_has_all_that_copies_hold_after_the_commands_of_the_page(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2: the driver accepts no empty WAL before an operator has said that it was lost."""
    with records_flowing(tmp_path, kafka_broker, topic_name(), driver=AHEAD) as (cluster, flow):
        cluster.killed_behind_a_held_job(flow, "driver", "agent", "r1")
        assert cluster.needed()
        wal = Path(cluster.wal_storage.url.removeprefix("file://"))
        shutil.rmtree(wal)
        for command in (("driver",), ("recover",), ("recover", "--apply")):
            refused = cluster.command(*command)
            assert refused.returncode == 1
            assert "the WAL is not mounted" in refused.stderr
        assert not list(wal.rglob("lineage-*"))
        (tmp_path / "hold").unlink()
        follow(cluster, written_commands()[2])
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
