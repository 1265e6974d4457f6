"""What an agent does about the driver's commands: a decision table without I/O.

Commands are repeated until acknowledged and idempotent: nothing is remembered but the highest epoch of a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.messages import Command


@dataclass(frozen=True, slots=True)
class Orders:
    """``commands``: to be done in this order. ``refused``: those of a driver that was superseded (INV-4)."""

    driver_epoch: int
    commands: tuple[Command, ...]
    refused: tuple[Command, ...]


def orders(seen_epoch: int, answer_epoch: int, commands: Sequence[Command]) -> Orders:
    """Sorts the ``commands`` of an answer from the driver with ``answer_epoch``; ``seen_epoch``: the highest seen.

    The newer of the two epochs must be durable before any command is done.
    """
    newest = max(seen_epoch, answer_epoch)
    current = [command for command in commands if command.driver_epoch >= newest and answer_epoch >= newest]
    refused = [command for command in commands if command not in current]
    return Orders(newest, tuple(sorted(current, key=lambda command: command.version)), tuple(refused))


def block_names(command: Command, stream: str) -> list[str]:
    """The ids of the blocks that a ``delete`` names. Raises ValueError for a block of another stream."""
    ids = []
    for name in command.blocks:
        owner, _, block_id = name.partition("/")
        if owner != stream:
            raise ValueError(f"command {command.version} names {name!r}, which is not of stream {stream}")
        ids.append(block_id)
    return ids
