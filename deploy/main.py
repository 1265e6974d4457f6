"""The ``forebay`` command. Exit codes: 0 fine, 1 findings, 2 wrong use, 3 unreachable, 4 fenced, 5 already running."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Sequence

import click

from deploy.console.groups import Entry, LazyGroup
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, shared_options
from deploy.console.streams import finish, open_closed, say
from forebay.model.errors import ForebayError
from forebay_start import find_first

#: heading in the help → command → its module and its line in the help; a folder below ``deploy.commands`` for each heading
_COMMANDS = {
    "Set up": {
        "init": Entry("deploy.commands.setup.init", "Write the configuration and the job of a first stream."),
        "install": Entry("deploy.commands.setup.install", "Set up a host for systemd, or remove the setup."),
        "validate": Entry("deploy.commands.setup.validation", "Check configuration, folders, job, broker and topics."),
        "doctor": Entry(
            "deploy.commands.setup.doctor.command", "Check this machine, Kafka, the stores and the clocks."
        ),
        "config": Entry("deploy.commands.setup.config", "Show the settings in force, and where each one comes from."),
        "token": Entry("deploy.commands.setup.token", "Make access tokens for the services."),
        "size": Entry("deploy.commands.setup.sizing", "Calculate the receivers, disks and memory that a load needs."),
        "completion": Entry("deploy.commands.setup.completion", "Print the script for a shell's completion."),
    },
    "Run": {
        "up": Entry("deploy.commands.running.services", "Run all services of this machine, and restart failed ones."),
        "down": Entry("deploy.commands.running.down", "Stop what `forebay up` runs on this machine."),
        "driver": Entry("deploy.commands.running.services", "Run the driver."),
        "agent": Entry("deploy.commands.running.services", "Run this host's executor agent."),
        "receiver": Entry("deploy.commands.running.services", "Run one receiver."),
        "stop": Entry("deploy.commands.running.stop", "Stop the driver; with --drain, drain the receivers first."),
    },
    "Inspect": {
        "status": Entry("deploy.commands.inspection.status", "Show partitions, receivers, agents, batches, problems."),
        "top": Entry("deploy.commands.inspection.top.command", "Show the stream at a glance, live in the terminal."),
        "tap": Entry(
            "deploy.commands.inspection.tap.command", "Print records as they are taken in, sampled and filtered."
        ),
        "lag": Entry("deploy.commands.inspection.lag", "Show how far intake and batches are behind Kafka."),
        "batches": Entry(
            "deploy.commands.inspection.batches", "Show the newest batches with their delays, or one batch."
        ),
        "blocks": Entry("deploy.commands.inspection.lists", "Show the newest blocks, or one block with its records."),
        "receivers": Entry("deploy.commands.inspection.lists", "Show the receivers, with their state and last errors."),
        "hosts": Entry("deploy.commands.inspection.lists", "Show the hosts of local copies, with space and load."),
        "states": Entry("deploy.commands.inspection.lists", "Show keyed states, with their keys, size and versions."),
        "audit": Entry("deploy.commands.inspection.audit", "Prove that each offset is in exactly one batch."),
        "debug": Entry("deploy.commands.debug.group", "Collect status, settings, logs and threads, without secrets."),
    },
    "Operate": {
        "offsets": Entry(
            "deploy.commands.offsets.group", "Show, export, import or reset offsets; accept a gap that Kafka left."
        ),
        "batch": Entry("deploy.commands.operation.batches", "Retry failed batches, or skip one."),
        "pause": Entry("deploy.commands.operation.pausing", "Begin no more batches; intake continues."),
        "resume": Entry("deploy.commands.operation.pausing", "Begin batches again after a pause."),
        "restart-receiver": Entry("deploy.commands.operation.receivers", "Drain a receiver and have it started again."),
        "cursors": Entry("deploy.commands.operation.cursors", "Show the cursors of queries, or drop one."),
        "dead-letters": Entry(
            "deploy.commands.dead_letters.group", "Count, show or resend records that the job could not decode."
        ),
        "forget": Entry("deploy.commands.operation.forgetting", "Stop reporting a removed receiver or host as silent."),
        "direct": Entry(
            "deploy.commands.direct", "Inspect a direct stream; accept a loss in it, or replay its batches."
        ),
    },
    "Recover": {
        "recover": Entry(
            "deploy.commands.recovery.recover", "Find and repair losses; accept a loss; replay completed batches."
        ),
        "journal": Entry("deploy.commands.recovery.journal", "Inspect the driver's journal, or rebuild a lost one."),
        "wal": Entry("deploy.commands.wal.group", "Inspect, verify, repair or export the write-ahead log."),
    },
    "Try out": {
        "demo": Entry("deploy.commands.trial.demo", "Run all services on real data through two crashes, then audit."),
        "broker": Entry("deploy.commands.trial.broker", "Run a Kafka broker on this machine until stopped."),
        "produce": Entry("deploy.commands.trial.produce", "Send lines, or the demo's flights, to a topic."),
    },
}


#: errors of a write
_AT_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_OF_THIS_HOST = _AT_WRITING | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS}


@click.group(
    cls=LazyGroup,
    sections=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("forebay init", "forebay --config forebay.toml up", "forebay status --json"),
)
@shared_options
@click.version_option(package_name="forebay", message="forebay %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Take Kafka records in once, keep them in a write-ahead log, and hand them to Spark jobs, each in exactly one batch.

    Exit codes: 0 fine, 1 findings (something needs attention), 2 wrong use, 3 unreachable, 4 fenced, 5 already running.
    Data goes to stdout, messages to stderr. --config and --json may be given before or after the command.
    """
    context.ensure_object(Invocation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code, which is not 0 if its output could not be written.

    A user's mistake and an error of the operating system end with one sentence on stderr; a fault of the program ends with a
    traceback.
    """
    find_first()  # before a job's folder is on the path
    open_closed()
    code, sentence = _run(arguments)
    lost = finish()
    for text in dict.fromkeys(filter(None, (sentence, lost))):
        _report(text)
    return code if lost is None else code or FINDINGS


def _run(arguments: Sequence[str] | None) -> tuple[int, str]:
    """Return the exit code, and the sentence that remains to be shown."""
    try:
        result = commands.main(
            args=None if arguments is None else list(arguments), prog_name="forebay", standalone_mode=False
        )
    except click.exceptions.Abort:
        say("forebay: interrupted")
        return 130, ""
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return error.exit_code, ""
    except click.ClickException as error:
        say(f"forebay: {_sentence(error)}")
        return error.exit_code, ""
    except BrokenPipeError:  # a reader such as `| head` closed the pipe: not a fault
        return FINDINGS, ""
    except ForebayError as error:
        return error.exit_code, str(error)
    except OSError as error:  # as on a full disk, or without free file descriptors
        level = logging.ERROR if logging.root.handlers else logging.DEBUG  # a service's log says where it ended
        logging.getLogger("forebay").log(level, "the command ends", exc_info=True)
        lost = finish() if error.filename is None and error.errno in _AT_WRITING else None
        return FINDINGS, lost or _cause(error)
    return (result if isinstance(result, int) else FINE), ""


def _report(sentence: str) -> None:
    from forebay.process import logs

    if logs.is_json():
        logging.getLogger("forebay").error("%s", sentence)
    else:
        say(f"forebay: {sentence}")


def _cause(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename is not None else ""
    if not place and error.errno in _AT_WRITING:  # the system names no file, and stdout is the likeliest
        place = "stdout or a file can't be written: "
    hint = "; check this host's disks and limits, and try again" if error.errno in _OF_THIS_HOST else ""
    return f"{place}{error.strerror or error}{hint}"


def _sentence(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context is not None else message


if __name__ == "__main__":
    sys.exit(main())
