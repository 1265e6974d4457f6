"""What ``forebay dead-letters`` prints: its reports as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

    from deploy.commands.dead_letters.reporting import Counted, Shown
    from deploy.commands.dead_letters.sending import Replayed


def tables(counted: list[Counted]) -> list[Group]:
    """Return the table of a list."""
    from deploy.console.table import table

    return [
        table(
            f"Dead letters: {sum(row.records for row in counted)}",
            (
                "batch",
                "time",
                "output",
                "topic",
                "cause",
                "records",
                "sent back",
                "batch is",
                "partition@offset",
                "for example",
            ),
            [
                (
                    f"{row.batch_id} ({row.batch_key})",
                    _moment(row.batch_time_ms),
                    row.output,
                    row.topic,
                    row.cause,
                    row.records,
                    row.sent,
                    row.state or "-",
                    _first_of(row),
                    row.example[:120],
                )
                for row in counted
            ],
        )
    ]


def _first_of(row: Counted) -> str:
    """Return ``0@12, 3@7 and 4 more``: partition and offset of the first records."""
    more = row.records - len(row.first)
    return ", ".join(name.rpartition("/")[2] for name in row.first) + (f" and {more} more" if more else "")


def letter_table(letter: Shown) -> Group:
    """Return the table of one dead letter."""
    from deploy.console.table import table

    incarnation = f" life {letter.incarnation}" if letter.incarnation > 1 else ""
    headers = [(f"header {name}", "null" if value is None else value) for name, value in letter.headers]
    return table(
        f"{letter.topic}/{letter.partition}@{letter.offset}{incarnation}",
        ("what", "value"),
        [
            ("cause", letter.cause),
            ("key", "null" if letter.key is None else letter.key),
            ("value", "null" if letter.value is None else letter.value),
            *headers,
            ("timestamp", _moment(letter.timestamp_ms)),
            (
                "batch",
                f"{letter.batch_id} ({letter.batch_key}) of {_moment(letter.batch_time_ms)} {letter.state}".rstrip(),
            ),
            ("output", letter.output),
            ("function", letter.function),
            ("attempt", str(letter.attempt)),
            ("sent back", "yes" if letter.sent else "no"),
        ],
    )


def replay_tables(done: Replayed) -> list[Group]:
    """Return the table of a replay."""
    from deploy.console.table import table

    verb = "sent to" if done.done else "would be sent to"
    rows: list[tuple[str, object]] = [(f"{verb} {topic}", records) for topic, records in done.sent.items()]
    return [table("Dead letters", ("what", "records"), [*rows, ("sent before", done.skipped)])]


def _moment(time_ms: int) -> str:
    from datetime import datetime, timezone

    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"
