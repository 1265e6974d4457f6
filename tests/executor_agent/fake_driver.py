"""A driver that answers an agent's heartbeats with what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, post

from forebay.http.application import application
from forebay.http.server import Server
from forebay.messages import AgentHeartbeatAnswer, AgentHeartbeatRequest, Command
from tests.support.state.stored import Stored
from wal.reading import BlockReference


class FakeDriver:
    """Answers heartbeats with ``answer``, and lets a test wait for one."""

    def __init__(self) -> None:
        self.answer = AgentHeartbeatAnswer(driver_epoch=5)
        self.heartbeats: list[AgentHeartbeatRequest] = []
        self._changed = threading.Condition()
        self.server = Server(application("driver", "0", [self._route()]), "http://127.0.0.1:0")

    def _route(self) -> object:
        @post("/v1/agents/heartbeat", status_code=200)
        async def heartbeat(request: Request[Any, Any, Any]) -> AgentHeartbeatAnswer:
            data = msgspec.json.decode(await request.body(), type=AgentHeartbeatRequest)
            with self._changed:
                self.heartbeats.append(data)
                self._changed.notify_all()
                return self.answer

        return heartbeat

    def await_heartbeat(
        self, condition: Callable[[AgentHeartbeatRequest], bool], since: int | None = None
    ) -> AgentHeartbeatRequest:
        """Return the first heartbeat from now on, or after the first ``since``, for which ``condition`` holds."""
        with self._changed:
            seen = len(self.heartbeats) if since is None else since
            assert self._changed.wait_for(lambda: any(map(condition, self.heartbeats[seen:])), 30), self.heartbeats[-1:]
            return next(filter(condition, self.heartbeats[seen:]))

    def say(self, epoch: int, *commands: Command) -> None:
        with self._changed:
            self.answer = AgentHeartbeatAnswer(driver_epoch=epoch, commands=commands)


def delete(version: int, epoch: int, *references: BlockReference) -> Command:
    return Command(version=version, driver_epoch=epoch, kind="delete", blocks=tuple(f"s/{r.id}" for r in references))


def held(stored: Stored) -> list[str]:
    return sorted(path.stem for path in (stored.blocks_directory / "s").glob("*.block"))
