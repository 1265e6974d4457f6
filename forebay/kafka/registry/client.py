"""Reads schemas from a registry with Confluent's protocol, by confluent-kafka's own client (the extra ``registry``)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import tenacity

from forebay.kafka.registry.bounded import TooLongAnswerError, bound
from forebay.kafka.registry.oauth import PREFIX, ClientCredentials
from forebay.model.errors import ForebayError, UnreachableError, UsageError
from forebay.model.text import split_url

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference

T = TypeVar("T")

AVRO, JSON, PROTOBUF = "avro", "json", "protobuf"
FORMATS = (AVRO, JSON, PROTOBUF)
#: options of the client that may be set; others are refused
CLIENT_OPTIONS = (
    "basic.auth.user.info", "bearer.auth.credentials.source", "bearer.auth.token", "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id", "bearer.auth.client.id", "bearer.auth.client.secret", "bearer.auth.scope",
    "bearer.auth.issuer.endpoint.url", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
    "proxy",
)  # fmt: skip
#: attempts for an unknown schema, which may have been registered a moment ago at another server of the registry
_ATTEMPTS_IF_UNKNOWN = 3
#: maximum number of schemas that one schema refers to, directly or indirectly
_REFERENCES_MAX = 1_000
#: maximum characters of a schema with all of these
_LENGTH_MAX = 8_388_608
#: maximum characters of an error's text, which may be a whole answer
_MESSAGE_LENGTH_MAX = 1_000
_NOT_NOW = (408, 429)
#: the option for the origin of a bearer token, and its values
_SOURCE, _STATIC, _OAUTH = "credentials.source", "STATIC_TOKEN", "OAUTHBEARER"
#: format in which a Protobuf file is requested: its FileDescriptorProto, in base64
_DESCRIPTOR = "serialized"


class RegistryAccess(msgspec.Struct, frozen=True):
    """How a registry is reached. Can be pickled.

    ``url``: one or more, separated by commas. ``options``: those of ``CLIENT_OPTIONS`` that are set. They may contain passwords,
    so ``repr`` does not show them. ``timeout_seconds``: of one whole request. ``attempts``: maximum number of requests without an
    answer.
    """

    url: str
    options: tuple[tuple[str, str], ...] = ()
    timeout_seconds: float = 10.0
    attempts: int = 5

    def __repr__(self) -> str:
        return f"<RegistryAccess to {shown(self.url)}>"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("to", shown(self.url))]


def shown(url: str) -> str:
    """Return ``url`` without a user and password in it."""
    return ",".join(part.strip().rpartition("@")[2] if "@" in part else part.strip() for part in url.split(","))


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema of a registry.

    ``key``: its number or GUID. ``text``: the schema; for Protobuf the file's descriptor in base64, or the file itself.
    ``references``: (name, text) of the schemas that it refers to, each before those that refer to it. ``rules``: names of rules
    that readers would have to apply, such as decryption.
    """

    key: int | str
    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    subject: str = ""
    version: int = 0
    rules: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = f" (version {self.version} of {self.subject})" if self.subject else ""
        return f"schema {self.key}{named}"


class SchemaError(UsageError):
    """The registry answers, but this one schema can't be used: it is too large, or refers to one that does not exist."""


class Registry:
    """A context manager for a few requests. Not thread-safe. The first request creates the client.

    Each request raises UnreachableError after ``access.attempts`` without an answer; SchemaError for a schema that can't be used;
    another UsageError if the registry refuses access, an option is invalid, or the libraries of the extra are not installed.
    """

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access
        self._made: Any = None
        self._tokens: ClientCredentials | None = None

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            self._made.close()
        if self._tokens is not None:
            self._tokens.close()

    @property
    def _client(self) -> Any:
        if self._made is None:
            self._tokens = self._tokens or _tokens(self._access)
            self._made = _client(self._access, self._tokens)
        return self._made

    def schema(self, key: int | str, format_: str, *, patient: bool = True) -> RegisteredSchema | None:
        """Return the schema with this number or GUID, for a writer of ``format_``; None if the registry has none.

        ``patient``: repeat the request for an unknown schema, which may have been registered a moment ago.
        """

        def ask(wire: str | None) -> Any:
            if isinstance(key, int):
                return self._client.get_schema(key, fmt=wire)
            return self._client.get_schema_by_guid(key, fmt=wire)

        found = self._as_written(ask, format_, patient)
        return None if found is None else self._registered(key, found)

    def version(self, subject: str, version: int | None, format_: str) -> RegisteredSchema:
        """Return a version of ``subject`` (None: the newest). Raises UsageError if there is none, or it has another format."""
        number: Any = "latest" if version is None else version

        def ask(wire: str | None) -> Any:
            return self._client.get_version(subject, number, fmt=wire)

        found = self._as_written(ask, format_)
        if found is None:
            what = f"no subject {subject!r}" if version is None else f"no version {version} of subject {subject!r}"
            raise UsageError(f"the schema registry {shown(self._access.url)} has {what}")
        made = self._registered(int(found.schema_id or 0), found.schema, subject, int(found.version or 0))
        check_readable(made, format_)
        return made

    def _as_written(self, ask: Callable[[str | None], Any], format_: str, patient: bool = True) -> Any:
        """Request the descriptor of a Protobuf file. A registry that can't make it may still have it, or the text."""
        if format_ != PROTOBUF:
            return self._answer(lambda: ask(None), patient)
        try:
            return self._answer(lambda: ask(_DESCRIPTOR), patient, once=True)
        except UnreachableError:
            return self._answer(lambda: ask(None), patient)

    def _registered(self, key: int | str, schema: Schema, subject: str = "", version: int = 0) -> RegisteredSchema:
        format_ = (schema.schema_type or "AVRO").lower()
        references = self._references(schema, format_)
        rules = tuple(_rules(schema))
        return RegisteredSchema(
            key, format_, schema.schema_str or "", tuple(references.items()), subject, version, rules
        )

    def _references(self, schema: Schema, format_: str) -> dict[str, str]:
        """Return name → text of all schemas that ``schema`` refers to, each after those that it refers to itself."""
        found: dict[str, str] = {}
        seen: set[str] = set()
        length = len(schema.schema_str or "")
        path = [("", schema, iter(schema.references or ()))]
        while True:
            name, own, left = path[-1]
            reference = next(left, None)
            if reference is None:
                path.pop()
                if not path:
                    return found
                found[name] = own.schema_str or ""
            elif (reference.name or "") not in seen:
                seen.add(reference.name or "")
                if len(seen) > _REFERENCES_MAX:
                    raise SchemaError(f"a schema refers to more than {_REFERENCES_MAX} other schemas")
                other = self._referred(reference, format_)
                length += len(other.schema_str or "")
                if length > _LENGTH_MAX:
                    raise SchemaError(f"a schema has, with those it refers to, more than {_LENGTH_MAX} characters")
                path.append((reference.name or "", other, iter(other.references or ())))

    def _referred(self, reference: SchemaReference, format_: str) -> Schema:
        def ask(wire: str | None) -> Any:
            return self._client.get_version(reference.subject, reference.version, True, wire)

        try:
            other = self._as_written(ask, format_)
        except _RefusedRequestError as error:
            raise SchemaError(f"{error}; another schema refers to this one as {reference.name!r}") from None
        if other is None:
            raise SchemaError(
                f"the schema registry {shown(self._access.url)} has no version {reference.version} of subject "
                f"{reference.subject!r}, which another schema refers to as {reference.name!r}"
            )
        return cast("Schema", other.schema)

    def _answer(self, ask: Callable[[], T], patient: bool, *, once: bool = False) -> T | None:
        """Return the answer of ``ask``; None if the registry does not have the schema.

        ``once``: do not repeat a request without an answer. Raises as the class says.
        """
        unknown_left = min(_ATTEMPTS_IF_UNKNOWN, self._access.attempts) if patient else 1

        _ = self._client  # raises here for invalid options

        def attempt() -> T | None:
            nonlocal unknown_left
            try:
                return ask()
            except Exception as error:
                status = getattr(error, "http_status_code", None)
                if status == 404:
                    unknown_left -= 1
                    if unknown_left > 0:
                        raise _Unknown from None
                    return None
                raise self._failure(error, status) from None

        waiting = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._access.attempts),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            retry=tenacity.retry_if_exception_type(_Unknown if once else (_Unknown, UnreachableError)),
            reraise=True,
        )
        try:
            answer: T | None = waiting(attempt)
        except _Unknown:
            return None
        return answer

    def _failure(self, error: Exception, status: int | None) -> Exception:
        if isinstance(error, ForebayError):
            return error
        where = f"the schema registry {shown(self._access.url)}"
        if isinstance(error, TooLongAnswerError):
            return SchemaError(f"{where} has a schema that is too large: {error}")
        if status in (401, 403):
            return UsageError(
                f"{where} refused access ({status}): set schema.registry.basic.auth.user.info or schema.registry.bearer.auth.* "
                "for a user that may read its schemas"
            )
        if status is not None and (status >= 500 or status in _NOT_NOW):
            said = str(getattr(error, "error_message", ""))[:_MESSAGE_LENGTH_MAX]
            return UnreachableError(f"{where} answered with status {status}: {said}")
        if status is not None:
            return _RefusedRequestError(f"{where} refused the request: {str(error)[:_MESSAGE_LENGTH_MAX]}")
        if isinstance(error, ValueError):
            return UsageError(f"{where} gave no answer of a schema registry: {error}; check schema.registry.url")
        if not isinstance(error, (OSError, RuntimeError, _library().http.TransportError)):
            return error
        return UnreachableError(f"{where} did not answer: {type(error).__name__}: {error}")


class _Unknown(Exception):
    pass


class _RefusedRequestError(UsageError):
    pass


def check_readable(schema: RegisteredSchema, format_: str) -> None:
    """Raise UsageError if ``schema`` has another format, or rules, which are not applied here."""
    if schema.format != format_:
        raise UsageError(f"{schema} has format {schema.format}, not {format_}")
    if schema.rules:
        raise UsageError(f"{schema} has rules for readers ({', '.join(schema.rules)}), which are not supported")


def _rules(schema: Schema) -> Iterator[str]:
    if schema.rule_set is None:
        return
    for rule in (*(schema.rule_set.domain_rules or ()), *(schema.rule_set.encoding_rules or ())):
        kind, mode = (str(getattr(one, "value", one)).upper() for one in (rule.kind, rule.mode))
        if kind == "TRANSFORM" and mode in ("READ", "WRITEREAD") and not rule.disabled:
            yield str(rule.name)


def descriptor_bytes(text: str) -> bytes | None:
    """Return the bytes of a descriptor in base64; None for the text of a .proto file."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _tokens(access: RegistryAccess) -> ClientCredentials | None:
    """Return the provider of tokens; None if the registry needs no token, or the options contain it."""
    options = dict(access.options)
    own = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    source = own.get(_SOURCE, _STATIC if "token" in own else _OAUTH).upper()
    if source not in (_STATIC, _OAUTH):
        raise UsageError(f"option schema.registry.{PREFIX}{_SOURCE}: {source!r}: allowed are {_STATIC} and {_OAUTH}")
    if not own or source == _STATIC:
        return None
    _library()
    return ClientCredentials(own, options.get("ssl.ca.location"), access.timeout_seconds)


def _client(access: RegistryAccess, tokens: ClientCredentials | None) -> Any:
    for url in access.url.split(","):
        parts = split_url(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"option schema.registry.url: {shown(url)!r}: allowed are one or more URLs, separated by commas, as in "
                "https://registry:8081"
            )
    settings: dict[str, Any] = {**dict(access.options), "url": access.url, "timeout": access.timeout_seconds}
    if tokens is not None:
        settings = {name: value for name, value in settings.items() if not name.startswith(PREFIX)}
        settings[f"{PREFIX}{_SOURCE}"] = "CUSTOM"
        settings[f"{PREFIX}custom.provider.function"] = tokens.fields
        settings[f"{PREFIX}custom.provider.config"] = {}
    elif any(name.startswith(PREFIX) for name in settings):
        settings[f"{PREFIX}{_SOURCE}"] = _STATIC
        settings.setdefault(f"{PREFIX}logical.cluster", "")
    library = _library()
    try:
        made = library.SchemaRegistryClient({**settings, "max.retries": 0})
        bound(made._rest_client.session, library.http, access.timeout_seconds)
        return made
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(f"options schema.registry.*: {error}") from None


def missing_extra(error: ImportError) -> UsageError:
    return UsageError(
        f"decoding by a schema registry needs libraries that are not installed ({error.name}): pip install 'forebay[registry]'"
    )


def _library() -> Any:
    """Return the client's class, and ``http``, the HTTP library that it uses."""
    try:
        from confluent_kafka import schema_registry
        from confluent_kafka.schema_registry.common._httpx_compat import httpx
    except ImportError as error:
        raise missing_extra(error) from None

    class Library:
        SchemaRegistryClient = schema_registry.SchemaRegistryClient
        http = httpx

    return Library
