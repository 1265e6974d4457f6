"""Commands for receivers: each is repeated in the answers of the receiver's heartbeats until the receiver acknowledges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay import messages as m
from forebay.model.values import TopicPartition


@dataclass(slots=True)
class _Unacknowledged:
    """Commands that one receiver has not acknowledged. ``version``: number of the newest one."""

    version: int = 0
    commands: list[m.Command] = field(default_factory=list)


class Commands:
    """The commands of all receivers under one driver epoch. Not journalled: a new driver gives its own commands."""

    def __init__(self, driver_epoch: int) -> None:
        self._driver_epoch = driver_epoch
        self._by_receiver: dict[str, _Unacknowledged] = {}

    def order(
        self,
        receiver_id: str,
        kind: str,
        partitions: Sequence[TopicPartition] = (),
        rates: m.Rates | None = None,
    ) -> None:
        """Add a command for the receiver. Of kind "rate" it replaces those that the receiver has not acknowledged."""
        known = self._by_receiver.setdefault(receiver_id, _Unacknowledged())
        if kind == "rate":
            known.commands = [command for command in known.commands if command.kind != "rate"]
        known.version += 1
        command = m.Command(
            version=known.version,
            driver_epoch=self._driver_epoch,
            kind=kind,
            partitions=tuple(partitions),
            rates=rates,
        )
        known.commands.append(command)

    def reclaim(self, receiver_id: str, tp: TopicPartition) -> None:
        """Order the receiver to claim ``tp`` again, unless such a command is open or ``receiver_id`` is ""."""
        if receiver_id and not any(c.kind == "reclaim" and tp in c.partitions for c in self.open(receiver_id)):
            self.order(receiver_id, "reclaim", [tp])

    def acknowledge(self, receiver_id: str, version: int) -> None:
        """Drop the receiver's commands up to number ``version``."""
        known = self._by_receiver.setdefault(receiver_id, _Unacknowledged())
        known.commands = [command for command in known.commands if command.version > version]

    def open(self, receiver_id: str) -> tuple[m.Command, ...]:
        """Return the receiver's commands that it has not acknowledged, oldest first."""
        known = self._by_receiver.get(receiver_id)
        return tuple(known.commands) if known is not None else ()

    def is_to_drain(self, receiver_id: str) -> bool:
        """Return whether the receiver has yet to acknowledge a drain command."""
        return any(command.kind == "drain" for command in self.open(receiver_id))

    def forget(self, receiver_id: str) -> None:
        """Drop the commands for an epoch that has ended."""
        self._by_receiver.pop(receiver_id, None)
