"""``recover --agent HOST=URL``: a damaged block is restored from the copy that another host's agent serves over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.commands.recovery.execution import apply_plan
from deploy.commands.recovery.surroundings import Surroundings
from deploy.main import main
from driver.journal.state import State
from executor_agent.main import Agent
from forebay.model.values import Block
from recovery.plan import KafkaView
from tests.recovery.test_killed import CONFIGURATION
from tests.recovery.test_recovering import served
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from tests.support.stores.fault_proxy import FaultProxy
from wal.blocks import cached_path

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    """The command runs on another host than the receiver did: its own block directory is empty, and no agent answers there."""
    logged = Logged(tmp_path)
    own = CONFIGURATION.replace('host = "h1"', 'host = "h2"').replace("/blocks", "/blocks-of-h2")
    (tmp_path / "forebay.toml").write_text(own.format(stream=STREAM, folder=tmp_path))
    return logged


@pytest.fixture
def agent(logged: Logged) -> Iterator[Agent]:
    """Of ``h1``, where the receiver ran."""
    its_own = msgspec.structs.replace(logged.settings.agent, url="http://127.0.0.1:0")
    with Agent(msgspec.structs.replace(logged.settings, agent=its_own)) as agent:
        yield agent


def two_blocks(logged: Logged) -> tuple[Block, Block]:
    """The first one is damaged in the WAL, and only the agent can have it."""
    logged.receiver("r1")
    blocks = logged.take_in("r1", {0: 5, 1: 3}, local=True), logged.take_in("r1", {0: 5, 1: 3}, local=True)
    logged.receiver("r1")
    logged.keep()
    logged.damage(blocks[0])
    return blocks


class Recover:
    def __init__(self, logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = str(logged.root / "forebay.toml")
        self._capsys = capsys
        self.error = ""

    def __call__(self, url: str, *options: str) -> tuple[int, Any]:
        """Exit code and plan."""
        command = ["--config", self._config, "--json", "recover", "--no-kafka", "--agent", f"h1={url}", *options]
        code = main(command)
        said = self._capsys.readouterr()
        self.error = said.err
        return code, json.loads(said.out)


@pytest.fixture
def recover(logged: Logged, capsys: pytest.CaptureFixture[str]) -> Recover:
    return Recover(logged, capsys)


def test_agents_copy_is_named_in_the_plan_and_its_bytes_are_written_again(
    logged: Logged, agent: Agent, recover: Recover
) -> None:
    """INV-1."""
    block, _ = two_blocks(logged)
    before = logged.segments()
    for options, done in ((), False), (("--apply",), True):
        assert logged.segments() == before
        code, plan = recover(agent.url, *options)
        assert code == (0 if done else 1)
        (found,) = plan["recoveries"]
        assert (found["block_id"], found["source"], found["exact"], found["done"]) == (block.id, "agent", True, done)
        assert plan["losses"] == [] and plan["copies"]["agents"] == ["h1"]
    assert served(logged, block).handle.checksum == block.handle.checksum
    code, plan = recover(agent.url)
    assert code == 0 and plan["recoveries"] == []


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("a bit turned", "is damaged at byte"),
        ("cut off", "is damaged at byte"),
        ("another block", "agent copy of block "),
        ("gone", "agent: h1 has none"),
    ],
)
def test_copy_that_is_not_the_accepted_block_is_refused(
    logged: Logged, agent: Agent, recover: Recover, what: str, why: str
) -> None:
    """INV-5: the loss has its reason, and the journal still names the block's old place."""
    block, other = two_blocks(logged)
    file = logged.local_file(block)
    data = file.read_bytes()
    file.unlink()
    if what == "a bit turned":
        file.write_bytes(data[:-70] + bytes([data[-70] ^ 1]) + data[-69:])
    elif what == "cut off":
        file.write_bytes(data[:-70])
    elif what == "another block":
        file.write_bytes(logged.local_file(other).read_bytes())
    code, plan = recover(agent.url, "--apply")
    assert code == 1 and plan["recoveries"] == []
    (loss,) = plan["losses"]
    assert loss["block_id"] == block.id
    (reason,) = [message for message in loss["reasons"] if message.startswith("agent: ")]
    assert why in reason
    assert logged.state().blocks[block.id].handle == block.handle
    served(logged, other)


@pytest.mark.parametrize("first", ["damaged", "gone"])
def test_cached_copy_of_another_host_is_written_again(
    logged: Logged, agent: Agent, recover: Recover, tmp_path: Path, first: str
) -> None:
    """The journal does not name this copy; the agent that it names has no whole copy any more."""
    block, _ = two_blocks(logged)
    file = logged.local_file(block)
    data = file.read_bytes()
    file.unlink()
    if first == "damaged":
        file.write_bytes(data[:-70])
    given = cached_path(tmp_path / "blocks-of-h3", STREAM, block.id)
    given.parent.mkdir(parents=True)
    given.write_bytes(data)
    other = msgspec.structs.replace(
        logged.settings.agent, url="http://127.0.0.1:0", blocks=str(tmp_path / "blocks-of-h3"), host="h3"
    )
    with Agent(msgspec.structs.replace(logged.settings, agent=other)) as third:
        code, plan = recover(agent.url, "--agent", f"h3={third.url}", "--apply")
    assert code == 0, plan
    (found,) = plan["recoveries"]
    assert (found["block_id"], found["source"], found["exact"], found["done"]) == (block.id, "agent", True, True)
    assert served(logged, block).handle.checksum == block.handle.checksum


def test_unreachable_agent_is_reported_and_not_fatal(logged: Logged, agent: Agent, recover: Recover) -> None:
    block, other = two_blocks(logged)
    url = agent.url
    agent.__exit__()
    code, plan = recover(url, "--apply")
    assert code == 1 and [loss["block_id"] for loss in plan["losses"]] == [block.id]
    assert plan["copies"]["agents"] == []
    assert any(message.startswith("h1: ") and url in message for message in plan["copies"]["silent"])
    served(logged, other)


# ---- an agent's process that is killed between its answer that it is there and the last byte of its copies -------------


@pytest.fixture
def process(logged: Logged) -> Iterator[subprocess.Popen[str]]:
    """``forebay agent`` of ``h1``; ``port_of``: where it listens."""
    folder = logged.root / "h1"
    folder.mkdir()
    configuration = CONFIGURATION.format(stream=STREAM, folder=logged.root).replace("127.0.0.1:2", "127.0.0.1:0")
    (folder / "forebay.toml").write_text(configuration)
    command = [sys.executable, "-m", "deploy.main", "--config", str(folder / "forebay.toml"), "agent"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r" serves .* at http://127\.0\.0\.1:([0-9]+)\b", line):
            return int(match[1])
    raise AssertionError("the agent ended")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


class Beside(Surroundings):
    """Kafka can be asked; ``found`` is called when the agents have said that they are there."""

    def __init__(self, logged: Logged, url: str, found: Callable[[], None] = lambda: None) -> None:
        super().__init__(logged.settings, kafka=True, agents=[("h1", url)])
        self._found = found

    def find_agents(self) -> None:
        super().find_agents()
        self._found()

    def kafka(self, state: State) -> KafkaView:
        return KafkaView("")


def three_blocks(logged: Logged) -> list[Block]:
    """Damaged in the WAL. Besides the agent's copies, only the last block's records are left, in Kafka."""
    logged.receiver("r1")
    blocks = [logged.take_in("r1", {0: 5, 1: 3}, local=True) for _ in range(3)]
    logged.receiver("r1")
    logged.keep()
    for block in blocks:
        logged.damage(block)
    logged.kafka.gone |= {(0, 0), (0, 5)}
    # the command's own host is h2, and has no copies
    own = msgspec.structs.replace(logged.settings.agent, host="h2", blocks=f"{logged.root}/blocks-of-h2")
    logged.settings = msgspec.structs.replace(logged.settings, agent=own)
    return blocks


@pytest.mark.parametrize("when", ["found", "half of a block sent", "one block sent"])
def test_killed_agent_loses_only_blocks_that_no_other_source_has(
    logged: Logged, process: subprocess.Popen[str], when: str
) -> None:
    """INV-5: the next source is asked and its blocks are written again; the rest is reported with the agent's last error."""
    first, second, third = three_blocks(logged)
    before = logged.state()
    with FaultProxy(port_of(process)) as proxy:
        if when == "half of a block sent":
            proxy.arm("half-answer", part_of_path=f"/{first.id}", answered=lambda: kill(process))
        elif when == "one block sent":
            proxy.arm("latency", part_of_path=f"/{first.id}", answered=lambda: kill(process))
        surroundings = Beside(logged, proxy.url, (lambda: kill(process)) if when == "found" else (lambda: None))
        plan = apply_plan(logged.settings, logged.journal, logged.wal, surroundings, logged.kafka.read_ranges)
    saved = [first.id] if when == "one block sent" else []
    assert [(r.block_id, r.source) for r in plan.recoveries] == [
        *((block_id, "agent") for block_id in saved), (third.id, "Kafka")
    ]  # fmt: skip
    assert [loss.block_id for loss in plan.losses] == [b.id for b in (first, second) if b.id not in saved]
    for loss in plan.losses:
        asked = [message.partition(": ")[0] for message in loss.reasons]
        assert asked == ["agent", "Kafka"], loss.reasons
    assert plan.open and plan.copies.agents == ("h1",)
    served(logged, third)
    for block in (first, second):
        if block.id in saved:
            served(logged, block)
        else:
            assert logged.state().blocks[block.id] == before.blocks[block.id]


def test_command_exits_with_1_and_a_sentence_for_each_block_lost_with_the_agent(
    logged: Logged, process: subprocess.Popen[str], recover: Recover
) -> None:
    """A second call, after the agent was restarted, restores them."""
    blocks = three_blocks(logged)
    with FaultProxy(port_of(process)) as proxy:
        proxy.arm("half-answer", part_of_path="/v1/blocks/", answered=lambda: kill(process))
        code, plan = recover(proxy.url, "--apply")
        assert code == 1 and plan["recoveries"] == []
        assert [loss["block_id"] for loss in plan["losses"]] == [block.id for block in blocks]
        error = recover.error
        assert "Traceback" not in error
        for block in blocks:
            (said,) = [line for line in error.splitlines() if block.id in line and " is lost " in line]
            assert "(agent: " in said
    its_own = msgspec.structs.replace(
        logged.settings.agent, url="http://127.0.0.1:0", host="h1", blocks=f"{logged.root}/blocks"
    )
    with Agent(msgspec.structs.replace(logged.settings, agent=its_own)) as back:
        code, plan = recover(back.url, "--apply")
    assert code == 0 and [r["source"] for r in plan["recoveries"]] == ["agent"] * 3
    for block in blocks:
        served(logged, block)
