"""``forebay batches``: the newest batches with their statistics, or one batch with its offsets and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from deploy.console.batch_tables import batch_tables, delay, moment
from deploy.console.driver_requests import observer
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import MomentType, NumberType
from forebay.messages import BATCH_STATES, BatchDetail, BatchEntry

if TYPE_CHECKING:
    from rich.console import Group

    from forebay.client import Client

#: number of batches that are shown by default
LAST = 20
#: maximum number of batches in one request
PAGE = 1_000
#: number of block ids that the tables show; ``--json`` has more
BLOCKS_SHOWN = 20


@click.command(
    epilog=example("forebay batches --failed", "forebay batches --since 2026-11-21T14:30:00Z", "forebay batches 12")
)
@click.argument("batch", metavar="[BATCH]", type=NumberType(1), required=False)
@click.option(
    "--last",
    metavar="N",
    type=NumberType(1),
    default=LAST,
    help=f"Maximum number of batches [default: {LAST}].",
)
@click.option("--failed", is_flag=True, help="Only batches with a failed attempt.")
@click.option("--state", type=click.Choice(BATCH_STATES), help="Only batches in this state.")
@click.option("--since", metavar="TIME", type=MomentType(), default=0, help="Only batches of this time or later.")
@click.option("--text", metavar="TEXT", default="", help="Only batches with this text in their id, error or output.")
@shared_options
@pass_invocation
def batches(
    invocation: Invocation, batch: int | None, last: int, failed: bool, state: str | None, since: int, text: str
) -> int:
    """Show the newest batches with their delays, the newest first; or BATCH, an id or number, with its offsets and blocks.

    The driver lists the unfinished batches and the newest completed ones (driver.batch_history).
    """
    with observer(invocation.settings()) as client:
        if batch is not None:
            detail = client.batch(batch)
            invocation.write(detail, lambda: _detail_tables(detail))
            return FINE
        shown = tuple(islice(_found(client, min(last, PAGE), state or "", failed, since, text), last))
    invocation.write(shown, lambda: batch_tables(shown))
    return FINE


def _found(client: Client, limit: int, state: str, failed: bool, since: int, text: str) -> Iterator[BatchEntry]:
    """Yield the batches of one page after the other; ``limit``: entries of a page."""
    after: str | None = ""
    while after is not None:
        page = client.batches(limit=limit, after=after, state=state, failed=failed, since_ms=since, text=text)
        yield from page.batches
        after = page.next or None


def _detail_tables(detail: BatchDetail) -> list[Group]:
    from rich.filesize import decimal

    from deploy.commands.inspection.status import tiers_text
    from deploy.console.table import table

    b = detail.batch
    facts = [
        ("state", f"{b.state}, replay {b.replay}" if b.replay else b.state),
        ("time", moment(b.time_ms)),
        ("completed", moment(b.completed_ms) if b.completed_ms is not None else "-"),
        ("records", b.records),
        ("size", decimal(b.bytes) if b.bytes is not None else "-"),
        ("blocks", b.blocks),
        ("blocks of each task", ", ".join(map(str, detail.tasks)) or "-"),
        ("attempts", b.attempts),
        ("rerun", "yes" if b.rerun else "no"),
        ("scheduling delay", delay(b.scheduling_delay_ms)),
        ("processing time", delay(b.processing_ms)),
        ("total delay", delay(b.total_delay_ms)),
        ("end-to-end delay", delay(b.end_to_end_ms)),
        ("ranges read by tier", tiers_text(b.tiers)),
        *([("outputs that are done", ", ".join(b.outputs))] if b.outputs else []),
        *([("written", "; ".join(b.written))] if b.written else []),
        *([("last error", b.detail)] if b.detail else []),
        *([("place of the error", b.place)] if b.place else []),
    ]
    blocks = detail.block_ids[:BLOCKS_SHOWN]
    return [
        table(f"Batch {b.number} ({b.batch_id})", ("what", "value"), facts),
        table(
            "Offsets",
            ("partition", "incarnation", "from", "until", "records", "size"),
            [
                (
                    f"{r.topic}/{r.partition}",
                    r.incarnation,
                    r.from_offset,
                    r.until_offset,
                    r.records,
                    decimal(r.bytes) if r.bytes is not None else "-",
                )
                for r in detail.ranges
            ],
        ),
        *(
            [table(f"Blocks ({len(blocks)} of {b.blocks})", ("block",), [(block_id,) for block_id in blocks])]
            if blocks
            else []
        ),
    ]
