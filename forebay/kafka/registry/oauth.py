"""Access tokens for a schema registry, by OAuth's client credentials (RFC 6749, 4.4).

authlib requests them, as in confluent-kafka's own client, but with the registry's timeout and certificates, and with errors that
name the failed server.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

from forebay.kafka.registry.bounded import bound
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.text import split_url
from forebay.process.os_errors import failure

PREFIX = "bearer.auth."
_ID, _SECRET, _ENDPOINT, _SCOPE = "client.id", "client.secret", "issuer.endpoint.url", "scope"
_CLUSTER, _POOL = "logical.cluster", "identity.pool.id"
#: share of a token's lifetime after which a new one is requested
_SHARE_USED = 0.8


class ClientCredentials:
    """Provides the registry's client with a token. Not thread-safe."""

    def __init__(self, options: Mapping[str, str], ca_location: str | None, timeout_seconds: float) -> None:
        """``options``: those with the prefix ``bearer.auth.``, without it. ``ca_location``: a PEM file or folder of authorities
        to trust besides the system's. Raises UsageError."""
        for name in (_ID, _SECRET, _ENDPOINT):
            if not options.get(name):
                raise UsageError(
                    f"options schema.registry.{PREFIX}*: {name} is missing: OAuth needs {_ID}, {_SECRET} and {_ENDPOINT}"
                )
        parts = split_url(options[_ENDPOINT])
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UsageError(
                f"option schema.registry.{PREFIX}{_ENDPOINT}: allowed is the URL of a token endpoint, without user and "
                "password, as in https://login/oauth2/token"
            )
        from authlib.integrations.httpx_client import OAuth2Client
        from confluent_kafka.schema_registry.common._httpx_compat import httpx

        self._endpoint = options[_ENDPOINT]
        self._shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._transport_error = httpx.TransportError
        self._status_error = httpx.HTTPStatusError
        trusted: ssl.SSLContext = httpx.create_ssl_context()
        if ca_location is not None:
            kind = "capath" if os.path.isdir(ca_location) else "cafile"
            where = f"option schema.registry.ssl.ca.location: {ca_location}"
            try:
                trusted.load_verify_locations(**{kind: ca_location})
            except ssl.SSLError as error:
                raise UsageError(f"{where}: {error}") from None
            except OSError as error:
                raise failure(where, error, kind=UsageError) from None
        self._client = OAuth2Client(
            options[_ID], options[_SECRET], scope=options.get(_SCOPE), verify=trusted, timeout=timeout_seconds
        )
        bound(self._client, httpx, timeout_seconds)
        self._fields = {f"{PREFIX}{_CLUSTER}": options.get(_CLUSTER, "")}
        if _POOL in options:
            self._fields[f"{PREFIX}{_POOL}"] = options[_POOL]

    def close(self) -> None:
        self._client.close()

    def fields(self, _: object = None) -> dict[str, str]:
        """Return the fields with a valid token. Raises UsageError if the endpoint refuses one, UnreachableError."""
        token = self._client.token
        if token is None or token.is_expired(leeway=(1 - _SHARE_USED) * float(token.get("expires_in") or 0)):
            token = self._fetched()
        return {**self._fields, f"{PREFIX}token": token["access_token"]}

    def _fetched(self) -> Any:
        from authlib.common.errors import AuthlibBaseError

        where = f"the token endpoint {self._shown} of the schema registry"
        try:
            token = self._client.fetch_token(self._endpoint, grant_type="client_credentials")
        except AuthlibBaseError as error:
            raise UsageError(
                f"{where} refused a token: {error}; check schema.registry.{PREFIX}{_ID}, {_SECRET} and {_SCOPE}"
            ) from None
        except self._status_error as error:
            raise UnreachableError(f"{where} answered with status {error.response.status_code}") from None
        except (OSError, self._transport_error) as error:
            raise UnreachableError(f"{where} did not answer: {type(error).__name__}: {error}") from None
        except (ValueError, TypeError, AttributeError):  # not the answer of a token endpoint
            token = None
        if not isinstance(token, Mapping) or not isinstance(token.get("access_token"), str):
            self._client.token = None
            raise UsageError(f"{where} returned no token; check schema.registry.{PREFIX}{_ENDPOINT}")
        return token
