"""Decides which of the driver's commands an agent performs. No I/O.

The driver repeats a command until it is acknowledged, and commands are idempotent. So an agent remembers only the highest
epoch of a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.messages import Command


@dataclass(frozen=True, slots=True)
class Orders:
    """The commands of the answer to one heartbeat.

    ``commands``: to perform, in this order. ``refused``: those that a superseded driver sent (INV-4). ``driver_epoch``: the
    highest epoch of a driver seen so far.
    """

    driver_epoch: int
    commands: tuple[Command, ...]
    refused: tuple[Command, ...]


def orders(seen_epoch: int, answer_epoch: int, commands: Sequence[Command]) -> Orders:
    """Return which ``commands`` of an answer are performed and which are refused.

    ``answer_epoch``: of the driver that answered. ``seen_epoch``: the highest that this agent has seen. The caller makes the
    higher of the two durable before it performs a command.
    """
    newest = max(seen_epoch, answer_epoch)
    current = [command for command in commands if command.driver_epoch >= newest and answer_epoch >= newest]
    refused = [command for command in commands if command not in current]
    return Orders(newest, tuple(sorted(current, key=lambda command: command.version)), tuple(refused))


def block_names(command: Command, stream: str) -> list[str]:
    """Return the ids of the blocks that a ``delete`` names. Raises ValueError for a block of another stream."""
    ids = []
    for name in command.blocks:
        owner, _, block_id = name.partition("/")
        if owner != stream:
            raise ValueError(f"command {command.version} names block {name!r}, which is not of stream {stream}")
        ids.append(block_id)
    return ids
