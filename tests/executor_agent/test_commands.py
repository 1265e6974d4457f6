"""Which of the driver's commands an agent performs, and in which order."""

from __future__ import annotations

import pytest

from executor_agent.commands import block_names, orders
from forebay.messages import Command


def delete(version: int, epoch: int, *blocks: str) -> Command:
    return Command(version=version, driver_epoch=epoch, kind="delete", blocks=blocks)


@pytest.mark.parametrize(
    ("seen", "answered", "epochs", "newest", "done", "refused"),
    [
        (0, 5, (5, 5), 5, (1, 2), ()),
        (5, 5, (5,), 5, (1,), ()),
        (6, 5, (5, 5), 6, (), (1, 2)),  # a suspended older driver, awake again
        (5, 7, (5, 7), 7, (2,), (1,)),  # a new driver does not repeat a command of an old one under the old epoch
        (6, 5, (6,), 6, (), (1,)),  # an old driver cannot use the newer epoch
    ],
)
def test_commands_of_a_superseded_driver_are_refused(
    seen: int, answered: int, epochs: tuple[int, ...], newest: int, done: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    """INV-4."""
    decided = orders(seen, answered, [delete(n, epoch) for n, epoch in enumerate(epochs, start=1)])
    assert decided.driver_epoch == newest
    assert tuple(c.version for c in decided.commands) == done
    assert tuple(c.version for c in decided.refused) == refused


def test_commands_are_performed_in_order_of_their_versions() -> None:
    """A heartbeat acknowledges the highest version performed, so every lower one must be performed too."""
    decided = orders(0, 5, [delete(9, 5), delete(3, 5), delete(4, 5)])
    assert [c.version for c in decided.commands] == [3, 4, 9]


def test_blocks_of_another_stream_are_refused() -> None:
    assert block_names(delete(1, 5, "s/r1-1-1", "s/r1-1-2"), "s") == ["r1-1-1", "r1-1-2"]
    for bad in ("t/r1-1-1", "r1-1-1", "../s/r1-1-1"):
        with pytest.raises(ValueError, match="not of stream"):
            block_names(delete(1, 5, bad), "s")
