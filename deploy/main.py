"""The ``forebay`` command. Exit codes: 0 fine, 1 found something, 2 wrong use, 3 could not reach, 4 fenced,
5 runs already."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from deploy.console.groups import LazyGroup
from deploy.console.invocation import FINE, FOUND, Invocation, example, shared_options
from forebay.model.errors import ForebayError
from forebay_start import find_first

#: command → its module
_COMMANDS = {
    "driver": "deploy.commands.services",
    "agent": "deploy.commands.services",
    "receiver": "deploy.commands.services",
    "up": "deploy.commands.services",
    "demo": "deploy.commands.demo",
    "install": "deploy.commands.install",
    "stop": "deploy.commands.stop",
    "broker": "deploy.commands.broker",
    "validate": "deploy.commands.validation",
    "status": "deploy.commands.status",
    "lag": "deploy.commands.lag",
    "offsets": "deploy.commands.offsets.group",
    "cursors": "deploy.commands.cursors",
    "batch": "deploy.commands.batches",
    "forget": "deploy.commands.forgetting",
    "audit": "deploy.commands.audit",
    "wal": "deploy.commands.wal.group",
    "journal": "deploy.commands.journal",
    "recover": "deploy.commands.recovery",
    "dead-letters": "deploy.commands.dead_letters",
    "token": "deploy.commands.token",
    "direct": "deploy.commands.direct",
}


@click.group(
    cls=LazyGroup,
    modules=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("forebay demo", "forebay --config forebay.toml up", "forebay status --json"),
)
@shared_options
@click.version_option(package_name="forebay", message="forebay %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Forebay takes Kafka records in once, keeps them in a write-ahead log, and hands them to Spark jobs.

    Exit codes: 0 fine, 1 found something, 2 wrong use, 3 could not reach, 4 fenced, 5 runs already. Data goes to stdout, words to
    stderr. --config and --json are taken before and after the command.
    """
    context.ensure_object(Invocation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code. A person's mistake is one sentence; our fault, a traceback."""
    find_first()  # before a job's folder is on the path
    try:
        result = commands.main(
            args=None if arguments is None else list(arguments), prog_name="forebay", standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("forebay: interrupted", err=True)
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"forebay: {_sentence(error)}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # whoever read our data has seen enough (`| head`): not a fault, but stdout must not be flushed again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FOUND
    except ForebayError as error:
        click.echo(f"forebay: {error}", err=True)
        return error.exit_code
    return result if isinstance(result, int) else FINE


def _sentence(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context is not None else message


if __name__ == "__main__":
    sys.exit(main())
