"""``forebay wal follow``: print the frames of the write-ahead log as they are written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.process.signals import stop_signals

if TYPE_CHECKING:
    from deploy.commands.wal.inspection import Entry
    from wal.segments.follow import Skipped
    from wal.segments.scan import Scanned

_POLL_SECONDS = 0.25
#: time between two listings of the store, which find new receivers and epochs
_LIST_SECONDS = 2.0


@click.command(
    "follow",
    epilog=example("forebay wal follow", "forebay wal follow --receiver r1 --from-start --json"),
)
@click.option("--receiver", metavar="ID", help="Only segments of this receiver [default: all].")
@click.option("--from-start", is_flag=True, help="Print existing frames first [default: only new frames].")
@shared_options
@pass_invocation
def follow(invocation: Invocation, receiver: str | None, from_start: bool) -> int:
    """Print each frame of the WAL as it is written, until Ctrl-C. With --json, each frame is one line.

    A printed block is written, but the driver may not have accepted it yet, or may refuse it; `forebay audit` shows what is
    accepted. Changes nothing and needs no driver.
    """
    from wal.segments.follow import StreamFollower
    from wal.storage import open_storage

    stopped = threading.Event()
    settings = invocation.settings()
    follower = StreamFollower(open_storage(settings.wal.url, settings.storage), settings.stream, receiver)
    show = from_start
    looked = -_LIST_SECONDS
    with stop_signals(stopped.set):
        invocation.say(
            f"forebay: following {settings.wal.url}; printed blocks may not be accepted yet; stop with Ctrl-C"
        )
        while not stopped.is_set():
            now = time.monotonic()
            look = now - looked >= _LIST_SECONDS
            _print(invocation, follower.look() if look else follower.more(), show, stopped)
            if look:
                looked, show = now, True
            stopped.wait(_POLL_SECONDS)
    return FINE


def _print(
    invocation: Invocation, found: Iterable[tuple[str, Scanned | Skipped]], show: bool, stopped: threading.Event
) -> None:
    for path, scanned in found:
        if stopped.is_set():
            return
        if show:
            entry = _entry(path, scanned)
            click.echo(msgspec.json.encode(entry).decode() if invocation.json else _line(entry))


def _entry(path: str, scanned: Scanned | Skipped) -> Entry:
    from deploy.commands.wal.inspection import Entry, describe
    from wal.segments.follow import Skipped

    if isinstance(scanned, Skipped):
        number = scanned.until - scanned.sequence
        return Entry(
            path, 0, 0, "deleted", detail=f"clean-up deleted {number} segments from this one on before they were read"
        )
    return describe(path, scanned)[0]


def _line(entry: Entry) -> str:
    parts = (
        entry.block_id or entry.kind,
        f"{entry.records} records" if entry.records else "",
        *entry.ranges,
        entry.detail,
    )
    return " ".join((f"{entry.path}@{entry.offset}", entry.state, *(word for word in parts if word)))
