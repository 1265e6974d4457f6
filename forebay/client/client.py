"""The client of a driver: its reads and its actions."""

from __future__ import annotations

from forebay.client.actions import Actions
from forebay.client.reads import Reads


class Client(Reads, Actions):
    """Calls the driver that leads a stream. Thread-safe. Close it, or use it in a ``with`` statement.

    Each method raises UnreachableError if no driver answers, RefusedError if the driver refuses, UsageError for a wrong
    argument, and AccessError if the token is missing, unknown, or of another role. No request is repeated after a driver may
    have acted on it.
    """
