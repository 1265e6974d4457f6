"""The base of all HTTP messages, and the answers that every route may give."""

from __future__ import annotations

import msgspec

from forebay.model.wire import WIRE_NAMES

#: entries of a list of partitions, or of what is said of each
PARTITIONS_MAX = 100_000


class Message(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    pass


class Refusal(Message, frozen=True, kw_only=True):
    code: str  # fenced | bad-request | not-found | not-ready | conflict
    message: str
    leader: str | None = (
        None  # of a standby, which decides nothing: where the driver at work is, "" if it knows of none
    )


class Done(Message, frozen=True, kw_only=True):
    pass
