"""``forebay driver``, ``agent`` and ``receiver`` run one service each; ``forebay up`` runs all services of this machine."""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from deploy.commands.setup.validation import import_jobs, refuse_equal_modules, require_writable
from deploy.console.invocation import (
    FINDINGS,
    FINE,
    Invocation,
    example,
    pass_invocation,
    prepare_job_imports,
    shared_options,
)
from deploy.console.streams import Nowhere
from deploy.supervision.detached import Announcer, start_detached
from deploy.supervision.run_lock import holder, lock_path, only_one
from deploy.supervision.supervisor import ChildSpec, LogLines, Supervisor
from driver.spark.early import starts_spark_first
from driver.spark.java.check import check_java
from forebay.model.errors import AlreadyRunningError
from forebay.model.identifiers import check_name, managed_id
from forebay.process import logs
from forebay.process.allocator import limit_arenas
from forebay.process.notify import taken_out
from forebay.process.signals import stop_signals
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind

log = logging.getLogger(__name__)

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: time for a child beyond its own drain: for a slow store, or for stopping Spark
_STOP_MARGIN_SECONDS = 15.0
#: time that a driver gives a job beyond the time for a drain
_JOB_GRACE_SECONDS = 5.0


def log_to_stderr(settings: Settings, service: str, **constant: str) -> None:
    """Log to stderr as ``[log]`` says; after a crash (SIGSEGV), print the Python stack of each thread. ``constant``: further
    fields of every line."""
    with suppress(io.UnsupportedOperation):  # stderr without a file descriptor, as in a notebook
        faulthandler.enable()
    if isinstance(sys.stdout, Nowhere):
        sys.stdout.is_output = False  # it is only what jobs print
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a job prints is in a log file when it is printed
    logs.configure(
        settings.log.format, settings.log.level, **{"service": service, "stream": settings.stream, **constant}
    )


def begin(settings: Settings, service: str, **constant: str) -> None:
    """Prepare this process for a service that runs until it is stopped."""
    limit_arenas()
    log_to_stderr(settings, service, **constant)


def with_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return the option ``--with``; the command gets ``others``, paths of further configuration files."""
    return click.option(
        "--with",
        "others",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=help_text,
    )


@click.command(epilog=example("forebay --config forebay.toml driver", "forebay driver --take-over"))
@click.option("--take-over", is_flag=True, help="Lead even if another driver's lease is fresh; that driver is fenced.")
@click.option("--standby", is_flag=True, help="Wait while another driver leads, and take over when its lease expires.")
@with_option(
    "Run the stream of this configuration file in the same process too, under the same Spark session. Can be repeated."
)
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="Take in and complete all records that Kafka holds now, then drain the receivers and exit.",
)
@shared_options
@pass_invocation
def driver(
    invocation: Invocation, take_over: bool, standby: bool, others: tuple[Path, ...], until_caught_up: bool
) -> int:
    """Run the driver: accept blocks from receivers, make batches of them, and run the job on each batch.

    The driver does not start while another driver's lease is fresh. With --standby it waits, and takes over when the lease
    has not been renewed for driver.lease_duration; list all drivers of the stream in driver.urls. A fenced driver exits with
    4 and must not be restarted.

    With --with, one process runs several streams, each with its own driver.url, receivers and job. A stream that fails is started
    again, and the others go on; a fenced one ends alone. [log] is that of the first configuration.
    """
    if take_over and standby:
        raise click.UsageError("--take-over and --standby exclude each other")
    paths = (invocation.config_path, *others)
    streams = [invocation.settings(), *map(load, others)]
    begin(streams[0], "driver", stream=",".join(settings.stream for settings in streams))
    refuse_equal_modules(paths)
    for settings, path in zip(streams, paths, strict=True):
        require_writable("driver.journal", settings.driver.journal)
        if source_kind(settings).runs_user_code:
            prepare_job_imports(path)
        if settings.driver.job is not None:
            import_jobs(settings, path)
    variables = taken_out(os.environ)  # before Spark's processes are started, which must not notify systemd
    if not others:
        if starts_spark_first(streams[0], standby):
            from driver.spark.java.jvm import start_jvm_early

            start_jvm_early(streams[0].spark)
        from driver.main import run

        return run(streams[0], variables, take_over=take_over, until_caught_up=until_caught_up, standby=standby)
    from driver.several import run_several

    return run_several(streams, variables, take_over=take_over, until_caught_up=until_caught_up, standby=standby)


@click.command(epilog=example("forebay --config forebay.toml agent"))
@shared_options
@pass_invocation
def agent(invocation: Invocation) -> int:
    """Run this host's executor agent: keep local copies of blocks, serve them to tasks, and delete them when the driver says so.

    With receiver.mode = "managed" the agent also runs the receivers that the driver places on this host, at most
    agent.capacity. They drain when the agent is stopped, and are killed with it when it is killed.
    """
    settings = invocation.settings()
    begin(settings, "agent")
    require_writable("agent.blocks", settings.agent.blocks)
    from executor_agent.main import run

    managed = settings.receiver.mode == "managed"
    return run(settings, (*_base(invocation.config_path), "receiver", "--id") if managed else ())


@click.command(epilog=example("forebay --config forebay.toml receiver --id r1"))
@click.option(
    "--id", "receiver_id", required=True, help="Name of the receiver: unique in the stream, the same after a restart."
)
@shared_options
@pass_invocation
def receiver(invocation: Invocation, receiver_id: str) -> int:
    """Run one receiver: consume partitions, make blocks durable, and report them to the driver.

    SIGTERM drains the receiver: it seals, stores, reports and commits the open block, and exits with 0. After `forebay
    restart-receiver` it drains too, and exits with 6, so that a supervisor starts it again.
    """
    try:
        check_name("--id", receiver_id)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings = invocation.settings()
    begin(settings, "receiver", receiver=receiver_id)
    if settings.has_wal:
        require_writable("wal.url", settings.wal.url)
    else:
        require_writable("agent.blocks", settings.agent.blocks)
    if source_kind(settings).runs_user_code:
        prepare_job_imports(invocation.config_path)
    from receiver.main import run

    return run(settings, receiver_id)


@click.command(
    epilog=example("forebay --config forebay.toml up", "forebay up --logs /var/log/forebay"),
)
@click.option(
    "--logs",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for one log file per service [default: all log lines go to stderr, after the service's name].",
)
@click.option("--standby", is_flag=True, help="Run the driver as a standby of a driver on another machine.")
@with_option("Run the services of the stream of this configuration file too, with one driver for all. Can be repeated.")
@click.option(
    "--detach",
    is_flag=True,
    help="Run the services in the background, and return when all are ready; their logs go to --logs [default: DATA/logs].",
)
@shared_options
@pass_invocation
def up(invocation: Invocation, folder: Path | None, standby: bool, others: tuple[Path, ...], detach: bool) -> int:
    """Run driver, agent and receivers of this machine, and restart a service that fails.

    The agent and the receivers start once the driver leads (with --standby: once it stands by). With receiver.mode =
    "managed", the agent runs the receivers that the driver places on it.

    SIGTERM, Ctrl-C or `forebay down` stops all services: the receivers drain first, then the driver stops, then the agent.
    With managed receivers, the agent drains them and stops before the driver. A second signal kills all services. A service
    that exits with 4 (fenced) is not restarted. A service that exits with 2 (wrong use) stops all services, because they share
    the configuration.

    If the stream already runs, by another `forebay up` on this machine or under a driver elsewhere, the command names that
    process, starts nothing, and exits with 5.
    """
    streams = [(invocation.settings(), invocation.config_path), *((load(path), path) for path in others)]
    settings = streams[0][0]
    if any(found.driver.engine == "spark" and found.driver.job is not None for found, _ in streams):
        check_java()  # before anything is started
    if detach:
        return _detached(invocation, streams, folder, standby)
    if folder is not None:
        require_writable("--logs", str(folder))
    announcer = Announcer(os.environ)

    as_json = settings.log.format == "json"
    if as_json:
        log_to_stderr(settings, "up")

    def note(event: str) -> None:
        if as_json:
            log.info("%s", event)
        else:
            _print(invocation, event)

    def say(event: str) -> None:
        note(event)
        announcer.event(event)

    def ready() -> None:
        pages = " and ".join(f"{found.driver.url}/" for found, _ in streams)
        note(f"all services are ready; {'the page of the stream is' if not others else 'the pages are'} {pages}")
        announcer.ready()

    with ExitStack() as locks:
        for found, _ in streams:
            locks.enter_context(only_one(found.agent.blocks, found.stream, say))
        supervisor = Supervisor(
            children_of(streams, standby),
            logs=LogLines(folder, as_json=as_json),
            say=say,
            ready=ready,
        )
        with stop_signals(supervisor.stop, supervisor.stop):
            return supervisor.run()


def _print(invocation: Invocation, event: str) -> None:
    with suppress(OSError):  # a full disk under stderr must not end the services
        invocation.say(f"up | {event}")


def _detached(
    invocation: Invocation, streams: Sequence[tuple[Settings, Path]], folder: Path | None, standby: bool
) -> int:
    """Run `forebay up` in the background. Return 0 when all services are ready, or its exit code if it ended before."""
    settings = streams[0][0]
    if folder is None and settings.data is None:
        raise click.UsageError("--detach: name the folder of the logs with --logs DIR")
    logs = (folder or Path(str(settings.data)) / "logs").resolve()
    require_writable("data" if folder is None else "--logs", str(logs))
    for found, _ in streams:
        with holder(lock_path(found.agent.blocks, found.stream)) as running:
            if running is not None:
                message = f"process {running.pid} runs stream {found.stream!r} already; `forebay down` stops it"
                raise AlreadyRunningError(message)
    command = [*_base(invocation.config_path), "up", "--logs", str(logs), *_with(streams)]
    command += ["--standby"] if standby else []
    invocation.say(f"starting the services; their logs are in {logs}")
    started = start_detached(command, logs / "up.log", lambda event: invocation.say(f"up | {event}"))
    if started.exit_code is not None:
        for line in started.printed.splitlines():
            if not line.startswith("up | "):  # reported as an event, and so shown already
                invocation.say(line)
        invocation.say(f"forebay: nothing runs: `forebay up` ended with exit code {started.exit_code}")
        return started.exit_code or FINDINGS
    if invocation.json:
        invocation.write({"process": started.pid, "driver": settings.driver.url, "logs": str(logs)})
    invocation.say(
        f"stream {settings.stream!r} runs as process {started.pid}; its page is {settings.driver.url}/, and `forebay down` "
        "stops it"
    )
    return FINE


def _with(streams: Sequence[tuple[Settings, Path]]) -> list[str]:
    return [word for _, path in streams[1:] for word in ("--with", str(path.resolve()))]


def children_of(streams: Sequence[tuple[Settings, Path]], standby: bool = False) -> list[ChildSpec]:
    """Return the services of this machine for several streams, which have one driver. Names begin with the stream."""
    made: list[ChildSpec] = []
    for settings, path in streams:
        driver_child, *others = children(settings, path, range(1, settings.receiver.count + 1), standby)
        if len(streams) == 1:
            return [driver_child, *others]
        if not made:
            made.append(replace(driver_child, command=(*driver_child.command, *_with(streams))))
        longest = max(made[0].stop_seconds, driver_child.stop_seconds)
        made[0] = replace(made[0], stop_seconds=longest, stop_rank=max(made[0].stop_rank, driver_child.stop_rank))
        made += [replace(child, name=f"{settings.stream}-{child.name}") for child in others]
    return made


def _base(config_path: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "forebay_start", "--config", str(config_path.resolve()))


def children(settings: Settings, config_path: Path, receivers: range, standby: bool = False) -> list[ChildSpec]:
    """Return the services of this machine as child processes: driver, agent, and a receiver for each number.

    Managed receivers are not among them. The agent runs those; it therefore stops before the driver, to which they report.
    """
    base = _base(config_path)
    drains = settings.driver.stop == "drain"
    driver_seconds = max(30.0, settings.driver.stop_timeout + _JOB_GRACE_SECONDS) if drains else 30.0
    drain_seconds = settings.receiver.drain_timeout + _STOP_MARGIN_SECONDS
    agent_seconds = settings.agent.drain_timeout
    driver_child = ChildSpec(
        "driver",
        (*base, "driver", *(["--standby"] if standby else [])),
        stop_rank=1,
        stop_seconds=driver_seconds + _STOP_MARGIN_SECONDS,
        goes_first=True,
    )
    if settings.receiver.mode == "managed":
        agent = ChildSpec("agent", (*base, "agent"), stop_rank=0, stop_seconds=drain_seconds + agent_seconds)
        return [driver_child, agent]
    return [
        driver_child,
        ChildSpec("agent", (*base, "agent"), stop_rank=2, stop_seconds=agent_seconds + _STOP_MARGIN_SECONDS),
        *(
            ChildSpec(
                f"receiver-{number}",
                (*base, "receiver", "--id", receiver_name(settings, number)),
                stop_rank=0,
                stop_seconds=drain_seconds,
            )
            for number in receivers
        ),
    ]


def receiver_name(settings: Settings, number: int) -> str:
    """Return the id of this machine's receiver ``number``, counted from 1: host name and number, unique across hosts.

    If the id also decides which partitions the receiver reads, this machine has all receivers.
    """
    if source_kind(settings).id_selects_partitions:
        return managed_id(settings.stream, number - 1)
    host = settings.receiver.host or socket.gethostname()
    return check_name("receiver id", f"{host[:56]}-{number}")
