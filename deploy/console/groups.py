"""Groups of commands whose modules are imported only when they are asked for: each module holds what one command needs."""

from __future__ import annotations

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """``modules``: command → the module that holds it under that name (``-`` written ``_``)."""

    def __init__(self, *arguments: Any, modules: dict[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        module = self._modules.get(name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command
