"""Requests of commands to the driver that leads the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.messages import StatusAnswer
from forebay.model.errors import SettingsError

if TYPE_CHECKING:
    from forebay.client import Client
    from forebay.security.roles import Role
    from forebay.settings.schema import Settings

#: Maximum time for one request. A driver that runs answers after one sync of its journal.
TIMEOUT_SECONDS = 10.0


def ask_status(settings: Settings, timeout_seconds: float = TIMEOUT_SECONDS) -> StatusAnswer:
    """Return the status of the driver that leads. Raises as ``observer``, and UnreachableError."""
    with observer(settings, timeout_seconds=timeout_seconds) as client:
        return client.status()


def operator(settings: Settings, timeout_seconds: float = TIMEOUT_SECONDS) -> Client:
    """Return a client of the stream's driver with an operator's token. Raises SettingsError."""
    from forebay.client import Client

    return Client.of(settings, timeout_seconds=timeout_seconds)


def observer(settings: Settings, other: Role = "reader", timeout_seconds: float = TIMEOUT_SECONDS) -> Client:
    """Return a client of the stream's driver with an operator's token; if there is none, with one of the role ``other``.

    Raises SettingsError if tokens are configured, but neither is among them.
    """
    from forebay.client import Client

    try:
        return operator(settings, timeout_seconds)
    except SettingsError:
        try:
            return Client.of(settings, role=other, timeout_seconds=timeout_seconds)
        except SettingsError:
            pass
        raise  # it names the operator's role, which may do everything
