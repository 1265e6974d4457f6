"""``recover --agent HOST=URL``: a damaged block comes back from the copy that another host's agent serves over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.main import main
from executor_agent.main import Agent
from forebay.values import Block
from tests.recovery.test_killed import CONFIGURATION
from tests.recovery.test_recovering import served
from tests.support.logged import Logged
from tests.support.tracked import STREAM

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
    """The first one is damaged in the WAL, and nothing but the agent can have it."""
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

    def __call__(self, url: str, *options: str) -> tuple[int, Any]:
        """Exit code and plan."""
        command = ["--config", self._config, "--json", "recover", "--no-kafka", "--agent", f"h1={url}", *options]
        code = main(command)
        return code, json.loads(self._capsys.readouterr().out)


@pytest.fixture
def recover(logged: Logged, capsys: pytest.CaptureFixture[str]) -> Recover:
    return Recover(logged, capsys)


def test_the_agents_copy_is_named_in_the_plan_and_written_anew_bit_by_bit(
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
        ("gone", "agent: it is not there"),
    ],
)
def test_a_copy_that_is_not_the_accepted_block_is_not_believed(
    logged: Logged, agent: Agent, recover: Recover, what: str, why: str
) -> None:
    """INV-5: it is a loss that says why, and the journal names the block where it did."""
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
    (reason,) = [words for words in loss["reasons"] if words.startswith("agent: ")]
    assert why in reason
    assert logged.state().blocks[block.id].handle == block.handle
    served(logged, other)


def test_an_agent_that_can_not_be_reached_is_said_and_not_fatal(logged: Logged, agent: Agent, recover: Recover) -> None:
    block, other = two_blocks(logged)
    url = agent.url
    agent.__exit__()
    code, plan = recover(url, "--apply")
    assert code == 1 and [loss["block_id"] for loss in plan["losses"]] == [block.id]
    assert plan["copies"]["agents"] == []
    assert any(words.startswith("h1: ") and url in words for words in plan["copies"]["silent"])
    served(logged, other)
