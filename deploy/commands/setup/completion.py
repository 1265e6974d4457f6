"""``forebay completion``: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from deploy.console.invocation import FINE, example, shared_options

#: the variable by which the script asks the command for completions
VARIABLE = "_FOREBAY_COMPLETE"


@click.command(
    epilog=example(
        'eval "$(forebay completion bash)"            # in ~/.bashrc',
        'eval "$(forebay completion zsh)"             # in ~/.zshrc, after compinit',
        "forebay completion fish > ~/.config/fish/completions/forebay.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared_options
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print a script on stdout with which SHELL completes commands, options and their values."""
    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(context.find_root().command, {}, "forebay", VARIABLE).source())
    return FINE
