"""An agent over HTTP: blocks by range, and commands in the answers of heartbeats."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import urllib3

from executor_agent.api import AgentStatus, parse_range
from executor_agent.main import Agent
from executor_agent.service import SILENT_SECONDS
from forebay.http.application import application
from forebay.http.client import Client
from forebay.http.server import Server
from forebay.messages import Command, Refusal
from forebay.model.errors import UnreachableError
from forebay.process import failpoints
from forebay.process.clock import ManualClock
from forebay.settings.schema import Settings
from tests.executor_agent.fake_driver import FakeDriver, delete, held
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import local_path
from wal.reading import BlockReference

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def get(url: str, **headers: str) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(retries=False) as pool:
        return pool.request("GET", url, headers=headers)


# ---- blocks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def big(stored: Stored) -> BlockReference:
    return stored.add(*block({("a", 0): filler(8000, size=800)}))


def test_a_block_is_served_whole_and_by_range(agent: Agent, stored: Stored, big: BlockReference) -> None:
    data = local_path(stored.blocks_directory, "s", big.id).read_bytes()
    assert len(data) > 3 << 20
    url = f"{agent.url}/v1/blocks/s/{big.id}"
    whole = get(url)
    assert (whole.status, whole.data, whole.headers["accept-ranges"]) == (200, data, "bytes")
    size = len(data)
    for header, start, end in (
        ("bytes=0-", 0, size),
        ("bytes=100-2500000", 100, 2_500_001),
        (f"bytes={size - 5}-{size + 100}", size - 5, size),
        ("bytes=-7", size - 7, size),
    ):
        part = get(url, range=header)
        assert part.status == 206
        assert part.data == data[start:end]
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
    beyond = get(url, range=f"bytes={size}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    assert msgspec.json.decode(beyond.data, type=Refusal).code == "bad-request"


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, (0, 100)),
        ("bytes=0-0", (0, 1)),
        ("bytes=99-", (99, 100)),
        ("bytes=-200", (0, 100)),
        ("bytes=-0", None),
        ("bytes=100-", None),
        ("bytes=5-2", (0, 100)),
        ("bytes=-", (0, 100)),
        ("bytes=0-1,5-6", (0, 100)),
        ("lines=0-1", (0, 100)),
        ("bytes=99999999999999999999-", (0, 100)),
    ],
)
def test_ranges_are_parsed_as_the_standard_requires(header: str | None, part: tuple[int, int] | None) -> None:
    assert parse_range(header, 100) == part


@pytest.mark.parametrize(
    "path",
    ["s/%2e%2e%2f%2e%2e%2fsecret", "%2e%2e/r1-1-1", "s/r1-1-1%00", "s/driver-epoch", "s/..%2fr1-1-1.block", "s/x"],
)
def test_names_outside_the_directory_are_refused_over_http(agent: Agent, stored: Stored, path: str) -> None:
    (stored.root / "secret").write_text("secret")
    answer = get(f"{agent.url}/v1/blocks/{path}")
    assert answer.status in (400, 404)
    assert msgspec.json.decode(answer.data, type=Refusal).code in ("bad-request", "not-found")


def test_an_absent_block_is_not_found(agent: Agent) -> None:
    answer = get(f"{agent.url}/v1/blocks/s/r1-1-1")
    assert (answer.status, msgspec.json.decode(answer.data, type=Refusal).code) == (404, "not-found")


@pytest.mark.parametrize(
    "ids", [[], ["r1-1-1"] * 1_001, ["../../etc/passwd"], ["x" * 2_000], [7], None], ids=lambda ids: str(ids)[:20]
)
def test_invalid_request_for_several_blocks_is_refused(agent: Agent, ids: object) -> None:
    """INV-6. No name leads out of the folder of blocks."""
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("POST", f"{agent.url}/v1/blocks/s", json={"ids": ids})
    assert answer.status == 400
    assert msgspec.json.decode(answer.data, type=Refusal).code == "bad-request"


def test_health_status_and_openapi_are_served(agent: Agent, big: BlockReference) -> None:
    client = Client(agent.url)
    client.request("GET", "/v1/health")
    status = client.get("/v1/status", AgentStatus)
    assert (status.stream, status.host) == ("s", "h1")
    assert "/v1/blocks/{stream}/{block_id}" in msgspec.json.decode(client.request("GET", "/v1/openapi.json"))["paths"]
    client.close()


# ---- heartbeats ------------------------------------------------------------------------------------------------------


def test_damaged_block_is_in_heartbeats_and_in_the_status(
    settings: Settings, stored: Stored, driver: FakeDriver
) -> None:
    """INV-5."""
    whole, damaged = (stored.add(*block({("a", 0): filler(50)}, sequence=n)) for n in (1, 2))
    path = local_path(stored.blocks_directory, "s", damaged.id)
    os.truncate(path, path.stat().st_size - 64)
    with Agent(settings) as agent:
        beat = driver.await_heartbeat(lambda _: True)
        assert (beat.blocks, beat.damaged, beat.damaged_blocks) == (1, (damaged.id,), 1)
        found = msgspec.json.decode(get(f"{agent.url}/v1/status").data, type=AgentStatus)
        assert (found.damaged, found.damaged_blocks) == ((f"s/{damaged.id}",), 1)
        assert get(f"{agent.url}/v1/blocks/s/{damaged.id}").status == 404
        assert get(f"{agent.url}/v1/blocks/s/{whole.id}").status == 200


def test_deletions_are_performed_and_acknowledged_until_the_driver_knows(
    stored: Stored, driver: FakeDriver, settings: Settings, three: list[BlockReference]
) -> None:
    """INV-8: intent, idempotent delete, done; repeated as long as the driver repeats the command."""
    with Agent(settings) as agent:
        first = driver.await_heartbeat(lambda beat: beat.blocks == 3)
        assert (first.host, first.url, first.acknowledged) == ("h1", agent.url, 0)
        driver.say(5, delete(8, 5, three[1]), delete(7, 5, three[0]))
        driver.await_heartbeat(lambda beat: beat.acknowledged == 8)
        assert held(stored) == [three[2].id]
        driver.await_heartbeat(lambda beat: beat.acknowledged == 8)  # its answer was lost: the same command is repeated
        driver.say(5)
        driver.await_heartbeat(lambda beat: beat.acknowledged == 0 and beat.blocks == 1)
        assert agent.heartbeat.deleted == 2


def test_deletion_by_older_driver_is_refused_even_after_a_restart(
    stored: Stored, driver: FakeDriver, settings: Settings, three: list[BlockReference]
) -> None:
    """INV-4."""
    driver.say(9)
    with Agent(settings) as agent:
        driver.await_heartbeat(lambda _: True)
        driver.await_heartbeat(lambda _: True)
        assert agent.heartbeat.driver_epoch == 9
    driver.say(8, delete(1, 8, three[0]))
    with Agent(settings) as agent:
        driver.await_heartbeat(lambda _: True)
        driver.await_heartbeat(lambda beat: beat.acknowledged == 0)
        status = agent.status()
        assert status.driver_epoch == 9
        assert status.refused_commands >= 1
        assert "not obeyed" in status.silent_driver
    assert len(held(stored)) == 3
    driver.say(9, delete(1, 8, three[0]), delete(2, 9, three[1]))
    with Agent(settings):
        driver.await_heartbeat(lambda beat: beat.acknowledged == 2)
    assert held(stored) == [three[0].id, three[2].id]


def test_deletion_outside_the_streams_directory_is_refused(
    stored: Stored, driver: FakeDriver, settings: Settings, three: list[BlockReference]
) -> None:
    secret = stored.root / "secret.block"
    secret.touch()
    for name in ("t/r1-1-1", "s/../../secret", "../secret"):
        driver.say(5, Command(version=3, driver_epoch=5, kind="delete", blocks=(name,)))
        with Agent(settings) as agent:
            driver.await_heartbeat(lambda _: True)
            driver.await_heartbeat(lambda beat: beat.acknowledged == 0)
            assert "refused" in agent.heartbeat.silent_driver
    assert secret.exists()
    assert len(held(stored)) == 3


def test_failpoint_is_before_the_first_deletion(
    stored: Stored, driver: FakeDriver, settings: Settings, three: list[BlockReference], tmp_path: Path
) -> None:
    failpoints.arm("agent.before-delete=error:EIO", str(tmp_path))
    try:
        driver.say(5, delete(1, 5, *three))
        with Agent(settings):
            driver.await_heartbeat(lambda beat: beat.acknowledged == 1)
    finally:
        failpoints.arm("")
    assert (tmp_path / "agent.before-delete.hit").exists()
    assert held(stored) == []


def test_agent_goes_on_while_the_driver_is_away(stored: Stored, three: list[BlockReference]) -> None:
    absent = FakeDriver()
    with absent.server:
        url = absent.server.url
    with Agent(stored.settings(url)) as agent:
        while "did not answer" not in agent.heartbeat.silent_driver:
            threading.Event().wait(0.01)
        assert get(f"{agent.url}/v1/blocks/s/{three[0].id}").status == 200
        again = FakeDriver()
        again.server = Server(application("driver", "0", [again._route()]), url)
        with again.server:
            again.await_heartbeat(lambda beat: beat.blocks == 3)
            again.await_heartbeat(lambda _: True)
            assert agent.heartbeat.silent_driver == ""


def test_silence_of_a_driver_is_logged_once_and_not_before_a_planned_stop_is_over(
    stored: Stored, driver: FakeDriver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`forebay up` stops the driver first, then the agent: that is no reason for a warning."""
    caplog.set_level("WARNING", "executor_agent")
    clock, rounds = ManualClock(), threading.Semaphore(0)

    def unreachable() -> None:
        raise UnreachableError("no driver answers")

    def await_rounds() -> None:
        """Wait until a heartbeat that began after this call has ended."""
        for _ in range(2):
            assert rounds.acquire(timeout=30)

    with Agent(stored.settings(driver.server.url), clock=clock) as agent:
        driver.await_heartbeat(lambda _: True)
        while not agent.heartbeat.answered:
            threading.Event().wait(0.01)
        monkeypatch.setattr(agent.heartbeat, "beat", unreachable)
        agent.heartbeat.came_round = rounds.release
        await_rounds()
        assert agent.heartbeat.silent_driver and not caplog.messages
        clock.advance(SILENT_SECONDS)
        rounds = threading.Semaphore(0)
        agent.heartbeat.came_round = rounds.release
        await_rounds()
        await_rounds()
        assert len([said for said in caplog.messages if "heartbeat to the driver failed" in said]) == 1, caplog.messages


def test_answer_of_a_superseded_driver_is_logged_immediately(
    stored: Stored, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """Only silence may be a planned stop."""
    caplog.set_level("WARNING", "executor_agent")
    warned = threading.Event()
    with Agent(stored.settings(driver.server.url), clock=ManualClock()) as agent:
        driver.await_heartbeat(lambda _: True)
        while not agent.heartbeat.answered:
            threading.Event().wait(0.01)
        driver.say(4)
        agent.heartbeat.came_round = lambda: warned.set() if caplog.messages else None
        assert warned.wait(30)


def test_watchdog_depends_on_heartbeat_and_server_separately(
    stored: Stored, driver: FakeDriver, settings: Settings, three: list[BlockReference]
) -> None:
    """A heartbeat that hangs stops the pings to the watchdog, although blocks are served."""
    rounds = {"http": 0, "heartbeat": 0}
    changed = threading.Condition()

    def came_round(loop: str) -> None:
        with changed:
            rounds[loop] += 1
            changed.notify_all()

    def more(loop: str) -> None:
        with changed:
            wanted = rounds[loop] + 3
            assert changed.wait_for(lambda: rounds[loop] >= wanted, 30), f"the loop {loop} makes no progress"

    hung, release = threading.Event(), threading.Event()

    def hang(*_: object) -> bool:
        hung.set()
        assert release.wait(60)
        return True

    agent = Agent(settings)
    agent.came_round = came_round
    assert not agent.service_status().ready
    with agent:
        more("heartbeat")
        assert agent.service_status().ready
        agent.store.delete = hang  # type: ignore[assignment]
        driver.say(5, delete(1, 5, three[0]))
        assert hung.wait(30)
        before = rounds["heartbeat"]
        more("http")
        assert rounds["heartbeat"] == before
        release.set()
        more("heartbeat")
    assert agent.service_status().stop_seconds is not None


# ---- receivers ---------------------------------------------------------------------------------------------------------

SLEEPER = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import os, time; print(os.environ['FOREBAY__RECEIVER__HOST']); time.sleep(60)",
)


def receiver_order(kind: str, version: int, epoch: int = 5) -> Command:
    return Command(version=version, driver_epoch=epoch, kind=f"{kind}-receiver", receiver_id="s-r0")


def test_commands_for_receivers_are_performed_beside_deletions(
    driver: FakeDriver, settings: Settings, three: list[BlockReference]
) -> None:
    """Only deletions are acknowledged by number. The heartbeat itself reports which receivers run."""
    driver.say(5, receiver_order("start", 90), delete(8, 5, three[0]))
    with Agent(settings, SLEEPER) as agent:
        beat = driver.await_heartbeat(lambda beat: bool(beat.receivers))
        assert (beat.acknowledged, beat.capacity) == (8, settings.agent.capacity)
        (said,) = agent.status().receivers
        assert (said.receiver_id, said.version, said.running) == ("s-r0", 90, True)
        driver.say(5, receiver_order("kill", 90))
        driver.await_heartbeat(lambda beat: not beat.receivers[0].running)
    last = driver.heartbeats[-1]
    assert last.capacity == 0, "the last heartbeat reports no capacity"


def test_superseded_driver_cannot_start_receivers(driver: FakeDriver, settings: Settings) -> None:
    """INV-4, after a restart too."""
    driver.say(9)
    with Agent(settings, SLEEPER):
        driver.await_heartbeat(lambda _: True)
        driver.await_heartbeat(lambda _: True)
    driver.say(8, receiver_order("start", 1, epoch=8))
    with Agent(settings, SLEEPER) as agent:
        driver.await_heartbeat(lambda _: True)
        driver.await_heartbeat(lambda _: True)
        assert agent.status().receivers == ()
        assert agent.status().refused_commands >= 1


def test_receiver_has_the_host_of_its_agent(
    driver: FakeDriver, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its local copies are in the directory of this agent, so tasks must read them from this host."""
    monkeypatch.setenv("FOREBAY__RECEIVER__HOST", "elsewhere")
    driver.say(5, receiver_order("start", 1))
    says = (sys.executable, "-I", "-S", "-c", "import os; print('host', os.environ['FOREBAY__RECEIVER__HOST'])")
    with Agent(settings, says):
        driver.await_heartbeat(lambda beat: bool(beat.receivers) and beat.receivers[0].last_line == "host h1")
