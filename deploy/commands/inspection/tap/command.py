"""``forebay tap``: prints records as they are taken in, sampled and filtered."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from deploy.commands.inspection.tap.paths import Condition, Path, parse_condition, parse_path
from deploy.commands.inspection.tap.selection import PAGE, TapFilter, places
from deploy.commands.inspection.tap.shown import as_hex, as_json, as_text, cut
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import NumberType
from forebay import messages as m
from forebay.model.errors import RefusedError, UnreachableError
from forebay.process.clock import Clock, SystemClock

if TYPE_CHECKING:
    from forebay.client import Client, Event

#: records that are printed in a second by default; records of one block that are searched at most
RATE, SEARCHED_MAX = 10, 1_000
#: default and maximum of the bytes of a key or a value that are printed
BYTES, BYTES_MAX = 1_024, 65_536
#: blocks that are listed to find the newest records
BLOCKS_MAX = 1_000


class _PathType(click.ParamType[Path]):
    name = "path"

    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        try:
            return value if isinstance(value, Path) else parse_path(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", parameter, context)


class _ConditionType(click.ParamType[Condition]):
    name = "path[=value]"

    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> Condition:
        try:
            return value if isinstance(value, Condition) else parse_condition(str(value))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", parameter, context)


@click.command(
    epilog=example(
        "forebay tap --topic flights",
        "forebay tap --where carrier=UA --show delay",
        "forebay tap --key order-17 --format hex --limit 1",
        "forebay tap --last 20 --json | jq .value_json",
    )
)
@click.option("--topic", metavar="TOPIC", default="", help="Only records of this topic.")
@click.option("--partition", metavar="N", type=NumberType(0), help="Only records of this partition.")
@click.option("--key", metavar="TEXT", default="", help="Only records with this text in their key.")
@click.option(
    "--where",
    metavar="PATH[=VALUE]",
    type=_ConditionType(),
    multiple=True,
    help="Only JSON values that have PATH, with this VALUE. May be repeated: all must hold.",
)
@click.option(
    "--show",
    metavar="PATH",
    type=_PathType(),
    multiple=True,
    help="Print only this part of a JSON value. May be repeated.",
)
@click.option("--format", "form", type=click.Choice(["text", "json", "hex"]), default="text", help="[default: text]")
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(min=1, max=10_000),
    default=RATE,
    help=f"Maximum number of records per second [default: {RATE}].",
)
@click.option("--limit", metavar="N", type=NumberType(1), help="Exit after this number of records.")
@click.option("--last", metavar="N", type=NumberType(1), help="Print the newest N records that are stored, and exit.")
@click.option(
    "--bytes", "bytes_max", metavar="N", type=click.IntRange(min=1, max=BYTES_MAX), default=BYTES,
    help=f"Maximum bytes of a key or value [default: {BYTES}].",
)  # fmt: skip
@shared_options
@pass_invocation
def tap(
    invocation: Invocation,
    topic: str,
    partition: int | None,
    key: str,
    where: tuple[Condition, ...],
    show: tuple[Path, ...],
    form: str,
    rate: int,
    limit: int | None,
    last: int | None,
    bytes_max: int,
) -> int:
    """Print records as the stream takes them in, until Ctrl-C. Needs a token of the role operator.

    The command prints a sample: at most --rate records per second, from blocks that the driver has just accepted. With --key,
    --where, --topic or --partition it searches the first 1,000 records of a block, with --last the last 1,000. --json, or
    --format json, prints one document in each line.

    PATH names a part of a JSON value: carrier, order.lines[0].price, or lines[*].price for every item. VALUE is a text, or JSON
    (3, true, null).
    """
    from forebay.client import Client

    selection = TapFilter(topic, partition, key, where)
    shown: dict[str, Callable[[m.RecordEntry], str]] = {
        "text": partial(as_text, paths=show),
        "json": partial(as_json, paths=show),
        "hex": as_hex,
    }
    made = shown["json" if invocation.json else form]
    if show or where:  # a path needs the whole document, also if only a part of it is printed
        whole, bytes_max = bytes_max, BYTES_MAX
        printed = made if show else lambda record: made(cut(record, whole))
    else:
        printed = made
    tapped = Tap(invocation, selection, shown=printed, rate=rate, limit=last or limit, bytes_max=bytes_max)
    with Client.of(invocation.settings()) as client:
        try:
            if last is not None:
                tapped.stored(client)
            else:
                tapped.follow(client)
        finally:
            tapped.report()
    return FINE


class Tap:
    """Prints wanted records, and counts what it looked at. ``limit``: number of records after which it ends; None: none."""

    def __init__(
        self,
        invocation: Invocation,
        selection: TapFilter,
        *,
        shown: Callable[[m.RecordEntry], str],
        rate: int,
        limit: int | None,
        bytes_max: int,
        clock: Clock | None = None,
        choice: random.Random | None = None,
    ) -> None:
        self._invocation = invocation
        self._selection = selection
        self._shown = shown
        self._rate = rate
        self._limit = limit
        self._bytes_max = bytes_max
        self._clock = clock or SystemClock()
        self._choice = choice or random.Random()  # noqa: S311  a sample is no secret
        self._printed = self._blocks = self._read = self._taken = 0
        self._allowance, self._filled = float(rate), self._clock.monotonic()

    def follow(self, client: Client) -> None:
        """Print records of blocks as the driver accepts them. A block that arrives while the rate is used up is passed over.

        Raises UnreachableError when the driver ends or can't be reached.
        """
        with closing(client.events()) as events:
            for event in events:
                if event.kind == "block-added":
                    self._block(client, event)
                elif event.kind in ("dropped", "end"):
                    raise UnreachableError(
                        f"{client.url} ended the stream of events: {event.data.get('reason', event.kind)}"
                    )
                if self._done:
                    return

    def stored(self, client: Client) -> None:
        """Print the newest wanted records that the driver can read."""
        self._rate = 1 << 30
        filters = {"topic": self._selection.topic, "partition": self._selection.partition}
        page = client.blocks(limit=BLOCKS_MAX, **filters)  # type: ignore[arg-type]
        found: list[m.RecordEntry] = []
        assert self._limit is not None
        for block in page.blocks:
            missing = self._limit - len(found)
            count = SEARCHED_MAX if self._selection.is_filtered else missing
            newest = [record for record in self._newest(client, block, count) if self._selection.wants(record)]
            found = [*newest[-missing:], *found]
            if len(found) >= self._limit:
                break
        for record in found:
            self._print(record)

    def report(self) -> None:
        """Say what was looked at."""
        self._invocation.say(
            f"forebay: {self._printed} records shown, {self._read} read, from {self._blocks} blocks with {self._taken} records"
        )

    @property
    def _done(self) -> bool:
        return self._limit is not None and self._printed >= self._limit

    def _block(self, client: Client, event: Event) -> None:
        if not self._selection.wants_block(tuple(event.data["ranges"])):
            return
        self._blocks += 1
        self._taken += event.data["records"]
        wanted = self._allowed()
        if wanted < 1:
            return
        searched = self._selection.is_filtered
        total = min(event.data["records"], SEARCHED_MAX) if searched else event.data["records"]
        for first, count in places(total, wanted, searched, self._choice):
            for record in self._records(client, event.data["block_id"], first, count):
                if self._selection.wants(record):
                    self._allowance -= 1
                    wanted -= 1
                    self._print(record)
                    if wanted < 1 or self._done:
                        return

    def _newest(self, client: Client, block: m.BlockEntry, count: int) -> Iterator[m.RecordEntry]:
        """Yield the last ``count`` records of a block. The driver reads the whole block for each page."""
        self._blocks += 1
        self._taken += block.records
        for first in range(max(0, block.records - count), block.records, PAGE):
            yield from self._records(client, block.block_id, first, min(PAGE, block.records - first))

    def _records(self, client: Client, block_id: str, first: int, count: int) -> tuple[m.RecordEntry, ...]:
        try:
            records = client.records(block_id, first=first, limit=count, bytes_max=self._bytes_max).records
        except RefusedError as error:
            if error.code != "not-found":  # its batch is completed, and the clean-up has deleted it
                raise
            return ()
        self._read += len(records)
        return records

    def _allowed(self) -> int:
        """Return how many records may be printed now: the rate for each second since the last call, one second's at most."""
        now = self._clock.monotonic()
        self._allowance = min(float(self._rate), self._allowance + (now - self._filled) * self._rate)
        self._filled = now
        return int(self._allowance)

    def _print(self, record: m.RecordEntry) -> None:
        click.echo(self._shown(record))
        self._printed += 1
