"""``forebay recover --accept-loss``: let a batch continue without ranges that can't be read."""

from __future__ import annotations

import re

from deploy.console.driver_requests import ask_status, operator
from deploy.console.invocation import FINE, NOTHING_CHANGED, Invocation, person
from deploy.console.unfinished import find_batch
from forebay.model.errors import UsageError
from forebay.settings.schema import Settings

_RANGE = re.compile(
    r"(?P<tp>[A-Za-z0-9._-]+/[0-9]+)\[\s*(?P<from>[0-9]+)\s*,\s*(?P<until>[0-9]+)\s*\)(?P<life>\s+life\s+[1-9][0-9]*)?"
)


def range_label(text: str) -> str:
    """Return a range such as ``flights/0[10,20)`` as the journal writes it. Raises UsageError for any other text."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a range: write 'TOPIC/PARTITION[FROM, UNTIL)', as `forebay recover` prints it"
        )
    incarnation = " ".join((match["life"] or "").split())
    return f"{match['tp']}[{match['from']}, {match['until']})" + (f" {incarnation}" if incarnation else "")


def accept_loss(
    invocation: Invocation, settings: Settings, named: int, labels: tuple[str, ...], because: str, yes: bool
) -> int:
    """Show the loss of the ranges ``labels`` by a batch; with ``yes``, have the driver journal it."""
    batch = find_batch(ask_status(settings).batches, named)
    ranges = ", ".join(labels) or "no range (the driver will name the ranges that can be left out)"
    if not yes:
        message = (
            f"would let batch {batch.batch_id} (number {batch.number}, {batch.state}) continue without {ranges}; "
            f"{NOTHING_CHANGED}"
        )
        invocation.write({"done": False, "message": message})
        invocation.say(message)
        return FINE
    with operator(settings) as client:
        message = client.accept_loss(batch.batch_id, labels, cause=person(because))
    invocation.write({"done": True, "message": message})
    invocation.say(message)
    return FINE
