"""The base of all HTTP messages, and the answers that every route may give."""

from __future__ import annotations

import msgspec

from forebay.model.wire import WIRE_NAMES

#: maximum entries of a list that has one entry for each partition
PARTITIONS_MAX = 100_000


class Message(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Base of all messages."""


class Refusal(Message, frozen=True, kw_only=True):
    """Body of a response with an error status."""

    code: str  # fenced | bad-request | not-found | not-ready | conflict
    message: str
    #: set by a standby, which decides nothing: the URL of the leading driver, or "" if it knows none
    leader: str | None = None


class Done(Message, frozen=True, kw_only=True):
    """Answer without content: the request is done."""
