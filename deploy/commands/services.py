"""``forebay driver``, ``agent`` and ``receiver`` run one service each; ``forebay up`` runs them all on this machine."""

from __future__ import annotations

import faulthandler
import io
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path

import click

from deploy.commands.validation import import_jobs, require_writable
from deploy.console.invocation import Invocation, example, pass_invocation, prepare_job_imports, shared_options
from deploy.supervision.run_lock import only_one
from deploy.supervision.supervisor import ChildSpec, LogLines, Supervisor
from forebay.model.values import check_name, managed_id
from forebay.process.signals import stop_signals
from forebay.settings.schema import Settings

#: what a child may need beyond its own drain: the answer of a slow store, the end of Spark
_STOP_MARGIN_SECONDS = 15.0
#: what a driver gives a job beyond the time for a drain
_JOB_GRACE_SECONDS = 5.0


def log_to_stderr() -> None:
    """Words of a service: one line each, with time and level, on stderr. Of a crash (SIGSEGV) the Python stack of each thread."""
    with suppress(io.UnsupportedOperation):  # a stderr that is no file, as in a notebook
        faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)


@click.command(
    short_help="Run the driver.", epilog=example("forebay --config forebay.toml driver", "forebay driver --take-over")
)
@click.option("--take-over", is_flag=True, help="Lead even if another driver's lease is fresh; it will be fenced.")
@click.option("--standby", is_flag=True, help="Wait while another driver leads, and take over when it is gone.")
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="Take in and complete all that Kafka holds now, then drain the receivers and end.",
)
@shared_options
@pass_invocation
def driver(invocation: Invocation, take_over: bool, standby: bool, until_caught_up: bool) -> int:
    """Run the driver: it takes in blocks, makes batches of them and runs the job.

    It refuses while another driver's lease is fresh; with --standby it waits, and takes over when the lease has not been
    renewed for driver.lease_duration. Name all drivers of the stream in driver.urls. A driver that was fenced exits with 4 and
    must not be restarted.
    """
    if take_over and standby:
        raise click.UsageError("--take-over and --standby exclude each other")
    settings = invocation.settings()
    log_to_stderr()
    require_writable("driver.journal", settings.driver.journal)
    if settings.custom_source:
        prepare_job_imports(invocation.config_path)
    if settings.driver.job is not None:
        import_jobs(settings, invocation.config_path)
    from driver.main import run

    return run(settings, take_over=take_over, until_caught_up=until_caught_up, standby=standby)


@click.command(short_help="Run this host's executor agent.", epilog=example("forebay --config forebay.toml agent"))
@shared_options
@pass_invocation
def agent(invocation: Invocation) -> int:
    """Run the executor agent: it keeps this host's blocks, serves them and deletes them on the driver's word.

    With receiver.mode = "managed" it also runs the receivers that the driver places on this host, up to agent.capacity; they
    drain when it is stopped, and die with it when it is killed.
    """
    settings = invocation.settings()
    log_to_stderr()
    require_writable("agent.blocks", settings.agent.blocks)
    from executor_agent.main import run

    managed = settings.receiver.mode == "managed"
    return run(settings, (*_base(invocation.config_path), "receiver", "--id") if managed else ())


@click.command(short_help="Run one receiver.", epilog=example("forebay --config forebay.toml receiver --id r1"))
@click.option(
    "--id", "receiver_id", required=True, help="Its name; unique within the stream, the same after a restart."
)
@shared_options
@pass_invocation
def receiver(invocation: Invocation, receiver_id: str) -> int:
    """Run one receiver: it consumes partitions, makes blocks durable and reports them.

    SIGTERM drains it: the open block is sealed, stored, reported and committed, then it exits with 0.
    """
    try:
        check_name("--id", receiver_id)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings = invocation.settings()
    log_to_stderr()
    if settings.has_wal:
        require_writable("wal.url", settings.wal.url)
    else:
        require_writable("agent.blocks", settings.agent.blocks)
    if settings.custom_source:
        prepare_job_imports(invocation.config_path)
    from receiver.main import run

    return run(settings, receiver_id)


@click.command(
    short_help="Run all services of this machine, and restart what dies.",
    epilog=example("forebay --config forebay.toml up", "forebay up --logs /var/log/forebay"),
)
@click.option(
    "--logs",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each service's lines to a file in DIR [default: all to stderr, with its name].",
)
@click.option("--standby", is_flag=True, help="Its driver waits while another machine's leads, and takes over then.")
@shared_options
@pass_invocation
def up(invocation: Invocation, folder: Path | None, standby: bool) -> int:
    """Run driver, agent and all receivers of this machine, and restart what dies.

    With receiver.mode = "managed" the agent runs the receivers that the driver places on it. SIGTERM or Ctrl-C stops all:
    receivers drain first, then the driver, then the agent; a second one kills. What exited
    with 4 (fenced) stays down; what exited with 2 (wrong use) stops all, since they share the configuration.

    Agent and receivers are started once the driver leads (with --standby: stands by). If the stream runs already, here by
    another `forebay up` or elsewhere under a driver that leads, it exits with 5, says which process that is, and starts
    nothing beside it.
    """
    settings = invocation.settings()

    def say(words: str) -> None:
        invocation.say(f"up | {words}")

    with only_one(settings.agent.blocks, settings.stream, say):
        supervisor = Supervisor(
            children(settings, invocation.config_path, range(1, settings.receiver.count + 1), standby),
            logs=LogLines(folder),
            say=say,
        )
        with stop_signals(supervisor.stop, supervisor.stop):
            return supervisor.run()


def _base(config_path: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "forebay_start", "--config", str(config_path.resolve()))


def children(settings: Settings, config_path: Path, receivers: range, standby: bool = False) -> list[ChildSpec]:
    """The services of this machine as child processes: driver, agent, and a receiver for each number; without receivers where
    these are managed, since the agent runs them, and they drain while there is a driver to report to."""
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
    """The id of this machine's receiver ``number``, from 1: its host's name and the number, unique over hosts. With a source of
    the user's own the id says which partitions are whose, so this machine has all receivers of the stream."""
    if settings.custom_source:
        return managed_id(settings.stream, number - 1)
    host = settings.receiver.host or socket.gethostname()
    return check_name("receiver id", f"{host[:56]}-{number}")
