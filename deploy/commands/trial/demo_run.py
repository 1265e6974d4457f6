"""One run of ``forebay demo``: start the services, kill two of them, wait until all is completed, audit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from deploy.commands.trial.demo_check import Carrier, Outcome, differences
from deploy.commands.trial.demo_parts import (
    KILLS,
    LIMIT_SECONDS,
    LOOK_SECONDS,
    RECEIVERS,
    Loader,
    broker_process,
    write_project,
)
from deploy.commands.trial.demo_screen import Screen
from deploy.examples.flights import jobs
from forebay.model.errors import ForebayError, UnreachableError
from forebay.process.signals import stop_signals
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings


def due_kills(taken_in: int, total: int, done: int) -> list[str]:
    """Return the names of the children to kill now. ``done``: number of KILLS that are already done."""
    return [name for share, name in KILLS[done:] if taken_in >= share * total]


def run(broker: str, folder: Path, screen: Callable[[int], Screen]) -> Outcome:
    """Run the whole demo in ``folder``, with logs in ``folder``/logs. Raises ForebayError if it does not complete."""
    from forebay.kafka.embedded.loader import FLIGHTS

    began = time.monotonic()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        seen = stack.enter_context(screen(FLIGHTS))
        seen.say(f"starting a broker ({broker})")
        address = stack.enter_context(broker_process(broker, folder))
        path = write_project(folder, address)
        settings = load(path, {})
        seen.say(
            f"broker at {address}; starting driver (Spark), agent and {RECEIVERS} receivers; all files in {folder}"
        )
        loader = Loader(settings)
        stack.callback(loader.stop)
        kills = _run_services(settings, path, folder, loader, seen)
        seen.say("all services stopped in order; auditing the journal")
    from deploy.commands.inspection import audit

    report = audit.read(settings)
    found = jobs.totals(folder / "results")
    return Outcome(
        records=loader.loaded,
        seconds=time.monotonic() - began,
        kills=tuple(kills),
        carriers=tuple(sorted((Carrier(name, *sums) for name, sums in found.items()), key=lambda c: -c.mean_minutes)),
        differences=tuple(differences(loader.expected.sums, found, report, loader.ends)),
        audit=report,
    )


def _run_services(settings: Settings, path: Path, folder: Path, loader: Loader, seen: Screen) -> list[str]:
    """Run the services under the supervisor until every loaded record is completed. Return the names of killed services."""
    from deploy.commands.running.services import children
    from deploy.supervision.supervisor import LogLines, Supervisor

    ended = threading.Event()
    supervisor = Supervisor(
        children(settings, path, range(1, RECEIVERS + 1)),
        environment={**os.environ, "FLIGHTS_RESULTS": str(folder / "results")},
        logs=LogLines(folder / "logs"),
        say=seen.say,
    )

    def supervise() -> None:
        try:
            supervisor.run()
        finally:
            ended.set()

    thread = threading.Thread(target=supervise, name="supervisor")
    with stop_signals(supervisor.stop, supervisor.stop):
        thread.start()
        try:
            return _watch(settings, supervisor.kill, ended, loader, seen, folder)
        finally:
            if not ended.is_set():
                supervisor.stop()
            thread.join()


def _watch(
    settings: Settings,
    kill: Callable[[str], bool],
    ended: threading.Event,
    loader: Loader,
    seen: Screen,
    folder: Path,
) -> list[str]:
    from forebay.client import Client
    from forebay.kafka.embedded.loader import FLIGHTS

    client = Client.of(settings, timeout_seconds=5.0)
    killed: list[str] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while not ended.wait(LOOK_SECONDS):
            if loader.failure is not None:
                raise loader.failure
            if time.monotonic() > deadline:
                raise ForebayError(
                    f"the demo did not end within {LIMIT_SECONDS:g} s; its logs are in {folder / 'logs'}"
                )
            try:
                answer = client.status()
            except UnreachableError:
                continue  # it is starting, or was just killed
            if answer.state == "running" and not loader.started:
                # not earlier, so that the crashes happen while batches are made
                seen.say("the driver is running: loading records")
                loader.start()
            taken_in = sum(partition.position for partition in answer.partitions)
            seen.show(loader.loaded, taken_in, answer.records_completed, answer.batches_completed)
            for name in due_kills(taken_in, FLIGHTS, len(killed)):
                flowing = "while data flows" if not loader.done else "after all data was loaded"
                seen.say(f"killing {name} with SIGKILL {flowing}, at {taken_in} records taken in")
                if not kill(name):
                    break  # it is just starting: the next round tries again
                killed.append(name)
            if loader.done and answer.records_completed >= loader.loaded and len(killed) == len(KILLS):
                return killed
    finally:
        client.close()
    raise ForebayError(f"the services ended before all records were completed; their logs are in {folder / 'logs'}")
