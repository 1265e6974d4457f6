"""``forebay receivers``, ``hosts``, ``blocks`` and ``states``: lists with filters, as the driver holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from deploy.commands.inspection.process_tables import hosts_table, managed_table, receivers_table
from deploy.commands.inspection.tap.shown import as_hex, as_json, as_text
from deploy.console.batch_tables import moment
from deploy.console.driver_requests import observer
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import NumberType, PartitionType
from forebay import messages as m
from forebay.model.values import TopicPartition

if TYPE_CHECKING:
    from rich.console import Group

    from forebay.client import Client

#: number of entries that are shown by default; entries in one request
LIMIT, PAGE = 100, 1_000
#: records in one request
RECORDS_PAGE = 100

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _name_options(function: _Function) -> _Function:
    for decorate in (
        click.option(
            "--limit",
            metavar="N",
            type=NumberType(1),
            default=LIMIT,
            help=f"Maximum number [default: {LIMIT}].",
        ),
        click.option("--text", metavar="TEXT", default="", help="Only names with this text."),
    ):
        function = decorate(function)
    return function


def _list_options(function: _Function) -> _Function:
    return click.option("--state", metavar="STATE", default="", help="Only those in this state.")(
        _name_options(function)
    )


@click.command(
    epilog=example("forebay receivers", "forebay receivers --state lost", "forebay receivers --json --text r1")
)
@_list_options
@shared_options
@pass_invocation
def receivers(invocation: Invocation, state: str, text: str, limit: int) -> int:
    """List the receivers by name: state, last heartbeat, buffered bytes, records, and last errors.

    States: registered, starting, active, waiting, draining, lost, fenced. --json prints the list as the API returns it.
    """
    with observer(invocation.settings()) as client:
        found, total, pages = _pages(
            lambda after, count: client.receivers(limit=count, after=after, state=state, text=text), "receivers", limit
        )
    managed = tuple(one for page in pages for one in page.managed)
    answer = m.ReceiversAnswer(total=total, receivers=found, managed=managed)
    invocation.write(answer, lambda: [receivers_table(found), *([managed_table(managed)] if managed else [])])
    _rest(invocation, len(found), total)
    return FINE


@click.command(epilog=example("forebay hosts", "forebay hosts --text worker --limit 500", "forebay hosts --json"))
@_list_options
@shared_options
@pass_invocation
def hosts(invocation: Invocation, state: str, text: str, limit: int) -> int:
    """List the hosts of local copies by name: the agent's state, blocks, space, load and labels.

    --json prints the list as the API returns it.
    """
    with observer(invocation.settings()) as client:
        found, total, _ = _pages(
            lambda after, count: client.hosts(limit=count, after=after, state=state, text=text), "hosts", limit
        )
    invocation.write(m.HostsAnswer(total=total, hosts=found), lambda: [hosts_table(found)])
    _rest(invocation, len(found), total)
    return FINE


@click.command(
    epilog=example(
        "forebay blocks --state waiting",
        "forebay blocks --partition flights/0 --offset 1234",
        "forebay blocks r1-1a2b-7 --records 20",
    )
)
@click.argument("block", metavar="[BLOCK]", required=False)
@_list_options
@click.option("--batch", metavar="ID", type=NumberType(1), help="Only blocks of this batch.")
@click.option("--topic", metavar="TOPIC", default="", help="Only blocks with records of this topic.")
@click.option(
    "--partition", metavar="TOPIC/N", type=PartitionType(), help="Only blocks with records of this partition."
)
@click.option("--offset", metavar="N", type=NumberType(0), help="Only blocks with this offset of the partition.")
@click.option(
    "--records",
    metavar="N",
    type=NumberType(1),
    default=None,
    help="With BLOCK: print its first N records. Needs a token of the role operator or query.",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "hex"]), default="text", help="Of records [default: text]."
)
@shared_options
@pass_invocation
def blocks(
    invocation: Invocation,
    block: str | None,
    state: str,
    text: str,
    limit: int,
    batch: int | None,
    topic: str,
    partition: TopicPartition | None,
    offset: int | None,
    records: int | None,
    form: str,
) -> int:
    """List the newest blocks that the journal names; or show BLOCK: its ranges, the places where it is stored, its records.

    States: waiting (for a batch), queued, completed. A block is listed until the history has its batch and the clean-up has
    deleted it.
    """
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition TOPIC/N")
    if records is not None and block is None:
        raise click.UsageError("--records needs a BLOCK")
    with observer(invocation.settings(), "query" if records is not None else "reader") as client:
        if block is not None:
            return _one_block(invocation, client, block, records, "json" if invocation.json else form)
        wanted_topic, number = (partition.topic, partition.partition) if partition is not None else (topic, None)
        found, total, _ = _pages(
            lambda after, count: client.blocks(
                limit=count,
                after=after,
                state=state,
                text=text,
                batch=batch or 0,
                offset=offset,
                topic=wanted_topic,
                partition=number,
            ),
            "blocks",
            limit,
        )
    invocation.write(m.BlockListAnswer(total=total, blocks=found), lambda: [_blocks_table(found)])
    _rest(invocation, len(found), total)
    return FINE


@click.command(epilog=example("forebay states", "forebay states --text carriers", "forebay states --json"))
@_name_options
@shared_options
@pass_invocation
def states(invocation: Invocation, text: str, limit: int) -> int:
    """List the keyed states by name: keys, bytes, shards, kept versions, and the last batch that changed them.

    A number of keys with "<=" is the number of rows in the state's files: a key that was changed since the last merge has more
    than one. --json prints the list as the API returns it, with columns and types.
    """
    with observer(invocation.settings()) as client:
        found, total, _ = _pages(
            lambda after, count: client.states(limit=count, after=after, text=text), "states", limit
        )
    invocation.write(m.StatesAnswer(total=total, states=found), lambda: [_states_table(found)])
    _rest(invocation, len(found), total)
    return FINE


def _states_table(found: tuple[m.StateEntry, ...]) -> Group:
    from rich.filesize import decimal

    from deploy.console.table import table

    return table(
        "Keyed states",
        ("state", "key", "keys", "size", "shards", "versions", "last batch", "updated", "fault"),
        [
            (
                s.name, ", ".join(s.key) or "-", s.keys_max if s.keys_exact else f"<= {s.keys_max}", decimal(s.bytes), s.shards,
                s.versions, s.batch_id or "-", moment(s.updated_ms) if s.updated_ms is not None else "-", s.detail or "-",
            )
            for s in found
        ],
    )  # fmt: skip


def _pages(request: Callable[[str, int], Any], name: str, limit: int) -> tuple[tuple[Any, ...], int, list[Any]]:
    """Return at most ``limit`` entries, the driver's number of all entries, and the pages. ``request``: after, limit → page."""
    pages: list[Any] = []

    def entries() -> Iterator[Any]:
        after = ""
        while True:
            page = request(after, min(limit, PAGE))
            pages.append(page)
            yield from getattr(page, name)
            after = page.next
            if not after:
                return

    found = tuple(islice(entries(), limit))
    total = pages[0].total if pages[0].total is not None else len(found)
    return found, total, pages


def _rest(invocation: Invocation, shown: int, total: int) -> None:
    if shown < total:
        invocation.say(f"forebay: {shown} of {total} are shown; --limit {total} shows all")


def _one_block(invocation: Invocation, client: Client, block_id: str, count: int | None, form: str) -> int:
    if count is None:
        entry = client.block(block_id)
        invocation.write(entry, lambda: _block_tables(entry))
        return FINE
    shown = {"text": as_text, "json": as_json, "hex": as_hex}[form]
    first = 0
    while first < count:
        answer = client.records(block_id, first=first, limit=min(RECORDS_PAGE, count - first))
        for record in answer.records:
            click.echo(shown(record))
        first += len(answer.records)
        if not answer.records or first >= answer.total:
            break
    return FINE


def _blocks_table(found: tuple[m.BlockEntry, ...]) -> Group:
    from rich.filesize import decimal

    from deploy.console.table import table

    return table(
        "Blocks, the newest first",
        ("block", "receiver", "host", "state", "batch", "records", "size", "created", "ranges"),
        [
            (
                b.block_id, b.receiver_id, b.host, b.state, b.batch_id or "-", b.records, decimal(b.bytes),
                moment(b.created_ms), _ranges(b.ranges),
            )
            for b in found
        ],
    )  # fmt: skip


def _ranges(ranges: tuple[m.BatchRange, ...]) -> str:
    shown = [f"{r.topic}/{r.partition}[{r.from_offset}, {r.until_offset})" for r in ranges[:3]]
    more = [f"and {len(ranges) - 3} more"] if len(ranges) > 3 else []
    return " ".join([*shown, *more])


def _block_tables(b: m.BlockEntry) -> list[Group]:
    from rich.filesize import decimal

    from deploy.console.table import table

    facts: list[tuple[str, object]] = [
        ("state", b.state),
        ("batch", b.batch_id or "-"),
        ("receiver", b.receiver_id),
        ("host", b.host),
        ("records", b.records),
        ("size", decimal(b.bytes)),
        ("created", moment(b.created_ms)),
        ("stored in", ", ".join(b.tiers) or "-"),
        ("place in the WAL", b.handle or "-"),
    ]
    ranges = [(f"{r.topic}/{r.partition}", r.incarnation, r.from_offset, r.until_offset, r.records) for r in b.ranges]
    return [
        table(f"Block {b.block_id}", ("what", "value"), facts),
        table("Ranges", ("partition", "incarnation", "from", "until", "records"), ranges),
    ]
