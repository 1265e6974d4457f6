"""Litestar applications of the services: roles of routes, errors as answers, decoding of bodies by msgspec."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.exceptions import ClientException, HTTPException, ValidationException
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from forebay import messages
from forebay.http.refusals import JSON_BYTES, refusal_of
from forebay.http.threads import threads_route
from forebay.model.errors import (
    AccessError,
)
from forebay.model.numbers import whole_number
from forebay.model.wire import UNDECODABLE
from forebay.security.access import OPEN, Guard
from forebay.security.roles import ANY_ROLE, EVERYBODY, ROLES, Caller, Role

#: the authentication scheme that a 401 must name (RFC 9110, 11.6.1)
_CHALLENGE = "Bearer"

_ROLES = "roles"

#: what each route answers instead of its own answer, for the OpenAPI document
_REFUSALS = {
    status: ResponseSpec(messages.Refusal, generate_examples=False, description=description)
    for status, description in {
        400: "The request is wrong",
        401: "The token is missing or unknown",
        403: "The token is of another role",
        404: "It does not exist",
        409: "It conflicts with the present state",
        503: "The service can't answer now",
    }.items()
}

#: the sender of the request that is being handled
caller: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)


def needs(*roles: Role) -> dict[str, frozenset[Role]]:
    """Return ``opt`` of a route: the roles that may use it. Without roles, no token is needed."""
    return {_ROLES: frozenset(roles)}


def application(title: str, release: str, routes: Sequence[Any], guard: Guard | None = None) -> Litestar:
    """Return a Litestar application of ``routes``, which answers errors with a ``messages.Refusal``, and serves
    ``/v1/openapi.json`` to every role and ``/v1/threads`` to operators.

    ``guard``: requires the roles that each route :func:`needs`. Raises ValueError if a route does not name any.
    """
    guards: list[Any] = []
    if guard is not None:
        if silent := [str(route) for route in routes if _ROLES not in route.opt]:
            raise ValueError(f"these routes do not name the roles that they need: {', '.join(silent)}")
        guards.append(_guarding(guard))
    for route in routes:
        roles = [role for role in ROLES if role in route.opt.get(_ROLES, ())]
        if route.description is None and roles:
            route.description = f"Roles: {', '.join(roles) if len(roles) < len(ROLES) else 'any'}"
        route.responses = {**_REFUSALS, **(route.responses or {})}
    return Litestar(
        route_handlers=[*routes, threads_route(needs("operator"))],
        guards=guards,
        openapi_config=OpenAPIConfig(
            title=title,
            version=release,
            path="/v1",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme=_CHALLENGE.lower())}),
            security=[{"token": []}, {}],
        ),
        exception_handlers={Exception: _refuse},
        request_class=_Request,
        request_max_body_size=(guard or OPEN).limits.request_bytes,
        logging_config=None,
    )


class _Request(Request[Any, Any, Any]):
    """Decodes a body directly as the type that its route takes.

    The framework makes plain values first. If these do not fit, it leaves a cycle of a frame and an error, which keeps body and
    values until the next garbage collection, minutes later in an idle service.
    """

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        assert field is not None
        try:
            return msgspec.json.decode(await self.body(), type=field.annotation, strict=False)
        except msgspec.ValidationError as error:
            # msgspec's error has no attribute for the place; tests/forebay/security/test_held_bodies.py reads this text
            message, _, place = str(error).partition(" - at `$")
            wrong = {"key": place.strip(".`") or "data", "message": message}
        except UNDECODABLE as error:
            raise ClientException(str(error)) from None
        raise ValidationException(f"Validation failed for {self.method} {self.url.path}", extra=[wrong])


def _guarding(guard: Guard) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]:
    async def check(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        roles = handler.opt.get(_ROLES, ANY_ROLE)
        caller.set(guard.authorize(connection.headers.get("authorization"), roles))

    return check


def _refuse(_: Request[Any, Any, Any], error: Exception) -> Response[messages.Refusal]:
    if isinstance(error, HTTPException):
        code = "not-found" if error.status_code == 404 else "bad-request"
        return Response(messages.Refusal(code=code, message=_message(error)), status_code=error.status_code)
    refusal, status = refusal_of(error)
    headers = {"www-authenticate": _CHALLENGE} if status == 401 else {}
    return Response(refusal, status_code=status, headers=headers)


def _message(error: HTTPException) -> str:
    """Return the detail, and each wrong field with its reason."""
    extra = error.extra if isinstance(error.extra, list) else []
    wrong = [f"{e.get('key', 'body')}: {e.get('message')}" for e in extra if isinstance(e, dict)]
    return "; ".join([error.detail, *wrong])


class Direct:
    """An application that bypasses the framework for valid POST requests to ``routes`` (path → type of the body).

    It decodes the body, calls ``handle``, and sends the answer. For a small message, the framework's layers cost more than all
    the rest. ``app`` has the same routes, describes them in its OpenAPI document, and receives every other request (another
    method, no length, too long, no token, an invalid body), so that only it decides how a request is refused. ``roles``: those
    that may use ``routes``. ``described``: ``app``, whose OpenAPI document describes all routes.
    """

    def __init__(
        self,
        app: Any,
        routes: Mapping[str, Any],
        *,
        handle: Callable[[Any], Awaitable[Any]],
        guard: Guard = OPEN,
        roles: frozenset[Role] = ANY_ROLE,
    ) -> None:
        self._app = self.described = app
        self._decoders = {path: msgspec.json.Decoder(body) for path, body in routes.items()}
        self._handle = handle
        self._guard = guard
        self._roles = roles

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        decoder = self._decoders.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        length = sent = b""
        if decoder is not None:
            for name, value in scope["headers"]:
                if name == b"content-length":
                    length = length or value
                elif name == b"authorization":
                    sent = sent or value
        if decoder is None or whole_number(length, self._guard.limits.request_bytes) is None:
            await self._app(scope, receive, send)
            return
        try:
            caller.set(self._guard.authorize(sent.decode("latin-1") or None, self._roles))
        except AccessError:
            await self._app(scope, receive, send)
            return
        events = [await receive()]
        while events[-1]["type"] == "http.request" and events[-1].get("more_body", False):
            events.append(await receive())
        try:
            data = decoder.decode(b"".join(event.get("body", b"") for event in events))
        except UNDECODABLE:
            unread = iter(events)

            async def again() -> Any:
                event = next(unread, None)
                return event if event is not None else await receive()

            await self._app(scope, again, send)
            return
        try:
            answer, status = await self._handle(data), 200
        except Exception as error:
            answer, status = refusal_of(error)
        body = msgspec.json.encode(answer)
        headers = [(b"content-type", JSON_BYTES), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
