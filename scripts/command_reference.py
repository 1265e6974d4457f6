"""Renders the ``forebay`` commands as Markdown, from the same objects that print ``--help``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the packages of this tree

from deploy.console.groups import LazyGroup
from deploy.main import commands

#: options of every command, described once
_SHARED = {"--config", "--json", "--help"}


def page() -> str:
    """Return the sections of all commands."""
    context = click.Context(commands, info_name="forebay")
    parts = ["## Options of every command\n", *_options(context, lambda names: bool(names & (_SHARED | {"--version"})))]
    for heading, entries in commands_by_heading().items():
        parts.append(f"## {heading}\n")
        for name in entries:
            command = commands.get_command(context, name)
            assert command is not None
            parts += _sections(command, click.Context(command, info_name=name, parent=context), 3)
    return "\n".join(parts)


def commands_by_heading() -> dict[str, list[str]]:
    """Return the names of the commands below each heading of ``forebay --help``."""
    assert isinstance(commands, LazyGroup)
    return {heading: list(entries) for heading, entries in commands.sections.items()}


def walk(command: click.Command = commands, path: str = "forebay") -> Iterator[tuple[str, click.Command]]:
    """Yield each command and group with its full name."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, f"{path} {name}")


def undocumented(command: click.Command = commands, path: str = "forebay") -> Iterator[str]:
    """Yield each command without a description, and each of its options without a help text."""
    for name, found in walk(command, path):
        if not found.help:
            yield f"{name}: no description"
        for parameter in found.params:
            if isinstance(parameter, click.Option) and not parameter.help:
                yield f"{name} {parameter.opts[-1]}: no help text"


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    path = context.command_path
    yield f"{'#' * level} {path}\n"
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    yield f"```text\n{usage}\n```\n"
    yield _text(command.help or "") + "\n"
    yield from _options(context, lambda names: not names & _SHARED)
    if command.epilog:
        yield f"```sh\n{_example(command.epilog)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _sections(found, click.Context(found, info_name=name, parent=context), level + 1)


def _options(context: click.Context, wanted: Callable[[set[str]], bool]) -> Iterator[str]:
    """Yield the table of the options whose names are ``wanted``."""
    rows = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None and wanted(set(parameter.opts)):
            rows.append(f"| `{_cell(record[0])}` | {_cell(_as_prose(record[1]))} |")
    if rows:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"


def _text(help_text: str) -> str:
    """Return a help text as Markdown. A paragraph after a line with \\b keeps its lines."""
    paragraphs = inspect.cleandoc(help_text).replace("\f", "").split("\n\n")
    return "\n\n".join(
        f"```text\n{inspect.cleandoc(part.removeprefix(chr(8)))}\n```" if part.startswith("\b") else shown(part)
        for part in paragraphs
    )


def _as_prose(text: str) -> str:
    return shown(" ".join(text.split()))


def shown(text: str) -> str:
    """Write options and placeholders in a sentence as code, so that Markdown shows them unchanged."""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part
        if part.startswith("`")
        else re.sub(r"(?<![\w`])(--[a-z][a-z-]*)", r"`\1`", part).replace("*", r"\*").replace("<", r"\<")
        for part in parts
    )


def _example(epilog: str) -> str:
    return inspect.cleandoc(epilog.replace("\b", "")).partition("Example:\n")[2].replace("\n  ", "\n").strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
