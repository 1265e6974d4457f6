"""Groups of commands that import a command's module only when the command is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


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

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self._entries)
        for heading, entries in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])
