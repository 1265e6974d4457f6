"""A second ``forebay up`` by mistake does not disturb the first."""

from __future__ import annotations

from typing import Any

from deploy.supervision.run_lock import lock_path
from forebay.messages import StatusAnswer
from tests.support.processes.up import running, status, until


def test_second_up_exits_and_the_first_continues(project: Any, url: str) -> None:
    with running(project, "up") as up:

        def at_work() -> StatusAnswer | None:
            """Whether a receiver is registered and has sent a heartbeat."""
            answer = status(url)
            return answer if answer and [r.state in ("active", "waiting") for r in answer.receivers] == [True] else None

        before = until(at_work)
        second = project.forebay("up")
        assert second.returncode == 5, second.stderr
        assert f"process {up.pid} holds {lock_path(project.folder / 'blocks', 'flights')}" in second.stderr
        assert "Traceback" not in second.stderr and second.stderr.count("\n") == 1
        after = until(at_work)
        assert (after.driver_epoch, after.receivers[0].epoch) == (before.driver_epoch, before.receivers[0].epoch)
        up.kill()
    with running(project, "up") as up:  # what the kill left behind is no obstacle
        assert until(lambda: status(url)).driver_epoch > before.driver_epoch
        down = project.forebay("down")
        assert down.returncode == 0, down.stderr
        assert down.stderr == f"process {up.pid} has stopped all services of stream 'flights'\n"
        assert up.wait(0) == 0 and status(url) is None


def test_up_beside_a_driver_that_leads_starts_nothing(project: Any, url: str) -> None:
    """As beside systemd's units: the lock is free, but the lease is held."""
    with running(project, "driver") as driver:
        until(lambda: status(url))
        second = project.forebay("up")
        assert second.returncode == 5, second.stderr
        assert f"pid {driver.pid}" in second.stderr and "leads stream 'flights' already" in second.stderr
        assert "up | driver found the stream already running (exit code 5) and is not restarted" in second.stderr
        assert "agent |" not in second.stderr and "receiver-1 |" not in second.stderr
        answer = until(lambda: status(url))
        assert answer.receivers == () and answer.agents == ()
