"""Converts errors to a service's answers: the refusal that a client decodes, and the HTTP status."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay import messages
from forebay.http.cross_site import JSON
from forebay.model.errors import (
    AccessError,
    FencedError,
    ForebayError,
    NotTakenError,
    OutOfSpaceError,
    RefusedError,
    UsageError,
)

_STATUS = {
    "bad-request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "fenced": 409,
    "conflict": 409,
    "not-ready": 503,
    "no-room": 507,
}

JSON_BYTES = JSON.encode()


def refusal_of(error: Exception) -> tuple[messages.Refusal, int]:
    """Return the refusal for ``error``, and the HTTP status. Raises ``error`` if it is not one of the project's errors."""
    if isinstance(error, FencedError):
        refusal = messages.Refusal(code="fenced", message=str(error))
    elif isinstance(error, (RefusedError, AccessError)):
        refusal = messages.Refusal(code=error.code, message=str(error))
    elif isinstance(error, NotTakenError):
        refusal = messages.Refusal(code="not-ready", message=str(error), leader=error.leader)
    elif isinstance(error, (UsageError, ValueError)):
        refusal = messages.Refusal(code="bad-request", message=str(error))
    elif isinstance(error, OutOfSpaceError):
        refusal = messages.Refusal(code="no-room", message=str(error))
    elif isinstance(error, ForebayError):
        refusal = messages.Refusal(code="not-ready", message=str(error))
    else:
        raise error
    return refusal, _STATUS.get(refusal.code, 409)


async def send_refusal(send: Any, status: int, refusal: messages.Refusal) -> None:
    """Send ``refusal``, and end the connection."""
    body = msgspec.json.encode(refusal)
    headers = [
        (b"content-type", JSON_BYTES),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
