"""Leading a checkpoint: only its leader decides, for as long as it leads."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from driver.decision_loop.loop import DriverLoop
from driver.journal.events import Event
from driver.journal.leadership.lease import LeaseKeeper
from driver.journal.log import opening
from driver.journal.state import State
from driver.tracker import Tracker, TrackerOptions
from forebay.model.errors import FencedError, UsageError
from forebay.process.clock import Clock
from wal.decisions.retention import RetentionLimits
from wal.storage import Storage

LEASE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Leadership:
    """A checkpoint that this process leads. ``loop`` makes the decisions and journals them."""

    epoch: int
    state: State
    loop: DriverLoop
    lease: LeaseKeeper


@contextlib.contextmanager
def lead(
    storage: Storage,
    name: str,
    max_queued_batches: int,
    clock: Clock,
    failed: Callable[[BaseException], None],
    durable: Callable[[Sequence[Event]], None] = lambda _: None,
) -> Iterator[Leadership]:
    """Lead the checkpoint of the stream ``name`` until the context ends. This fences its previous leader.

    ``failed``: called with the error if the leadership ends before. ``durable``: called with events that have become durable, in
    the decision loop. Raises UsageError if the journal is an intake's;
    FencedError, StoreError, CorruptionError, NewerVersionError.
    """
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as closing:
        opened, state = opening.lead(
            storage,
            name,
            owner,
            clock.wall_ms(),
            lambda: clock.wall_ms() / 1000,
            lambda: secrets.randbits(64),
        )
        closing.callback(opened.close)
        refuse_intake(storage.url, state)

        def superseded(error: FencedError) -> bool:
            failed(error)
            return True

        lease = LeaseKeeper(
            storage, name, opened.epoch, owner=owner, url="", duration_seconds=LEASE_SECONDS, superseded=superseded
        )
        lease.follow(lambda: opened.confirmed)
        lease.start()
        closing.callback(lease.stop)
        tracker = Tracker(
            state,
            opened.epoch,
            TrackerOptions(
                on_gap="stop", max_queued_batches=max_queued_batches, retention=RetentionLimits(retention_ms=0)
            ),
        )
        loop = DriverLoop(tracker, opened, clock, perform=lambda _: None, failed=failed, durable=durable)
        loop.start()
        closing.callback(loop.stop)
        yield Leadership(opened.epoch, state, loop, lease)


def refuse_intake(url: str, state: State) -> None:
    """Raise UsageError if ``state`` is that of an intake."""
    if (state.partitions or state.blocks) and not state.is_direct:
        raise UsageError(
            f"{url} has the journal of an intake named {state.stream!r}: choose another name or another checkpoint for the "
            "direct stream"
        )
