"""Groups of commands that import a command's module only when the command is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from forebay.settings.reading.similar import did_you_mean


class Entry(NamedTuple):
    """The place of a command and its line in the group's help.

    ``module`` has the command under its own name, with ``-`` written as ``_``.
    """

    module: str
    summary: str


class LazyGroup(click.Group):
    """A group that shows its help without importing its commands.

    ``sections``: heading in the help → name of a command → its entry.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, Entry]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), name.replace("-", "_"))
        assert isinstance(command, click.Command)
        command.short_help = entry.summary
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if name not in self._entries and name[:1].isalnum():
            meant = did_you_mean(name, self._entries).strip()
            context.fail(f"No such command {name!r}{f'; {meant}' if meant else ''}")
        return super().resolve_command(context, arguments)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands by their entries, without importing them, and options as every command does."""
        found = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, context, incomplete)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self._entries)
        for heading, entries in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])
