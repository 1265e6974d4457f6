"""The command line under test: a configuration in a separate folder, the real command as a process, a made-up driver."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from litestar import get, post
from litestar.params import JSONBody

from forebay import messages as m
from forebay.http.application import application
from forebay.http.server import Server
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import RefusedError
from tests.support.run.ports import free_port

CONFIGURATION = """
stream = "flights"
[kafka]
topics = ["t"]
"bootstrap.servers" = "127.0.0.1:1"
[wal]
url = "file://{folder}/wal"
[driver]
url = "http://127.0.0.1:1"
journal = "file://{folder}/journal"
job = "jobs:process"
engine = "local"
[agent]
url = "http://127.0.0.1:2"
blocks = "{folder}/blocks"
"""


@dataclass
class Project:
    """A folder with a configuration and a job."""

    folder: Path

    def __post_init__(self) -> None:
        self.config = self.folder / "forebay.toml"
        self.config.write_text(CONFIGURATION.format(folder=self.folder))
        (self.folder / "jobs.py").write_text("def process(batch):\n    pass\n\nnumber = 7\n")

    def replace(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def forebay(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the installed command in ``folder`` (default: the project's)."""
        command = Path(sys.executable).with_name("forebay")
        return subprocess.run(
            [str(command), *arguments],
            cwd=folder or self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that an ordinary user can see, and can't enter."""
    # pytest's own folders are closed themselves
    outer = Path(tempfile.mkdtemp())
    outer.chmod(0o755)
    folder = outer / "closed"
    folder.mkdir()
    (folder / "forebay.toml").write_text("")
    folder.chmod(0o000)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(outer)


#: numbers of setresuid(2), which changes one thread
_SETRESUID = {"x86_64": 117, "aarch64": 147}


def set_user_of_thread(real: int, effective: int, saved: int) -> None:
    """Change the user of this thread alone. ``os.setresuid`` changes all threads by a signal to each, which also interrupts their
    polls: librdkafka's mock broker then ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SETRESUID[platform.machine()], real, effective, saved) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture
def as_ordinary_user() -> Callable[[], AbstractContextManager[None]]:
    """Inside the context this thread has no rights of root."""

    @contextmanager
    def changed() -> Iterator[None]:
        if os.getuid() != 0:
            yield
            return
        set_user_of_thread(65534, 65534, 0)
        try:
            yield
        finally:
            set_user_of_thread(0, 0, 0)

    return changed


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(
        "deploy.commands.recovery.surroundings.ANSWER_SECONDS", 0.1
    )  # no process listens at the ports of its configuration
    return Project(tmp_path)


@pytest.fixture
def url(project: Project) -> Iterator[str]:
    """The URL of the project's driver, with its own ports and broker."""
    url = f"http://127.0.0.1:{free_port()}"
    with MockBroker() as broker:
        broker.create_topic("t")
        project.replace('127.0.0.1:1"\n[wal]', f'{broker.address}"\n[wal]')
        project.replace("[driver]", '[driver]\nlease_duration = "3s"')
        project.replace('"http://127.0.0.1:1"', f'"{url}"')
        project.replace('"http://127.0.0.1:2"', f'"http://127.0.0.1:{free_port()}"')
        yield url


def status_answer(*partitions: m.TrackedPartition, state: str = "running", **more: object) -> m.StatusAnswer:
    return m.StatusAnswer(
        stream="flights",
        release="0.1.0",
        timeline=1,
        driver_epoch=1 << 40 | 1,
        state=state,
        detail="",
        topic_ids_known=True,
        waiting_blocks=1,
        waiting_records=10,
        batches_completed=2,
        records_completed=20,
        partitions=partitions,
        **more,  # type: ignore[arg-type]
    )


def tracked_partition(number: int = 0, fault: str = "") -> m.TrackedPartition:
    return m.TrackedPartition(
        topic="t",
        partition=number,
        incarnation=1,
        topic_id="",
        position=30,
        completed=20,
        high_watermark=42,
        receiver_id="r1",
        token=1,
        state="trouble" if fault else "active",
        fault=fault,
        end_age_seconds=1.0,
        lag=12,
    )


@dataclass
class MadeUpDriver:
    """A driver that answers ``status``, and keeps the changes that were requested."""

    status: m.StatusAnswer
    gaps: list[m.AcceptGapRequest] = field(default_factory=list)
    fences: list[m.FenceRequest] = field(default_factory=list)
    refusals: list[RefusedError] = field(default_factory=list)  # of the next accept-gap requests
    losses: list[m.AcceptLossRequest] = field(default_factory=list)
    replays: list[m.ReplayRequest] = field(default_factory=list)
    drops: list[m.DropCursorRequest] = field(default_factory=list)
    lag: m.LagAnswer = field(default_factory=lambda: m.LagAnswer(partitions=()))


@pytest.fixture
def made_up_driver(project: Project) -> Iterator[MadeUpDriver]:
    driver = MadeUpDriver(status_answer(tracked_partition()))

    @get("/v1/status")
    async def status() -> m.StatusAnswer:
        return driver.status

    @post("/v1/operator/accept-gap", status_code=200)
    async def accept_gap(data: JSONBody[m.AcceptGapRequest]) -> m.OperatorAnswer:
        if driver.refusals:
            raise driver.refusals.pop(0)
        driver.gaps.append(data)
        return m.OperatorAnswer(message="the gap was recorded")

    @post("/v1/operator/fence", status_code=200)
    async def fence(data: JSONBody[m.FenceRequest]) -> m.OperatorAnswer:
        driver.fences.append(data)
        return m.OperatorAnswer(message="receiver r1 is fenced")

    @post("/v1/operator/accept-loss", status_code=200)
    async def accept_loss(data: JSONBody[m.AcceptLossRequest]) -> m.OperatorAnswer:
        driver.losses.append(data)
        return m.OperatorAnswer(message="the batch goes on")

    @post("/v1/operator/replay", status_code=200)
    async def replay(data: JSONBody[m.ReplayRequest]) -> m.OperatorAnswer:
        driver.replays.append(data)
        return m.OperatorAnswer(message="replay 1: 2 batches run again")

    @post("/v1/operator/drop-cursor", status_code=200)
    async def drop_cursor(data: JSONBody[m.DropCursorRequest]) -> m.OperatorAnswer:
        driver.drops.append(data)
        return m.OperatorAnswer(message=f"cursor {data.cursor} dropped")

    @get("/v1/lag")
    async def get_lag() -> m.LagAnswer:
        return driver.lag

    with Server(
        application("driver", "0.1.0", [status, get_lag, accept_gap, fence, accept_loss, replay, drop_cursor]),
        "http://127.0.0.1:0",
    ) as server:
        project.replace('url = "http://127.0.0.1:1"', f'url = "{server.url}"')
        yield driver


@pytest.fixture
def make_status() -> Callable[..., m.StatusAnswer]:
    return status_answer


@pytest.fixture
def make_partition() -> Callable[..., m.TrackedPartition]:
    return tracked_partition
