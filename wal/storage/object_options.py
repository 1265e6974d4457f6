"""Options of object stores: limits of requests, and a check of the keys that go to the client."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.model.errors import UsageError
from forebay.model.units import parse_duration, parse_size
from forebay.settings.reading.similar import did_you_mean

#: options that fsspec itself takes for every file system
_FSSPEC_KEYS = frozenset(
    {
        "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop",
        "batch_size",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLimits:
    """Limits of requests to an object store.

    ``request_seconds``: maximum time of one request, plus the time that its bytes take at the minimum bandwidth.
    ``retry_seconds``: maximum time during which a failed request is retried. ``part_bytes``: objects of at least twice this
    size are sent in parts.
    """

    request_seconds: float = 10.0
    retry_seconds: float = 20.0
    part_bytes: int = 32 << 20

    @classmethod
    def taken_from(cls, options: dict[str, Any], scheme: str) -> ObjectLimits:
        """Return the limits in ``options``: ``request_timeout``, ``retry_timeout`` and ``part_size``. Remove these keys there.

        Raises UsageError for a value that is not valid.
        """
        given: dict[str, Any] = {}
        for key, name, parse in (
            ("request_timeout", "request_seconds", parse_duration),
            ("retry_timeout", "retry_seconds", parse_duration),
            ("part_size", "part_bytes", parse_size),
        ):
            if key in options:
                value = options.pop(key)
                try:
                    given[name] = parse(value)
                except ValueError as error:
                    raise UsageError(f"storage.{scheme}.{key} = {value!r}: {error}") from None
        limits = cls(**given)
        if limits.request_seconds <= 0:
            raise UsageError(f"storage.{scheme}.request_timeout must be longer than 0ms")
        if limits.part_bytes < 5 << 20:
            raise UsageError(f"storage.{scheme}.part_size must be at least 5MiB, the minimum that S3 accepts")
        return limits


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise UsageError for a key that s3fs or botocore does not know: they would raise TypeError at the first request."""
    import aiobotocore.session  # type: ignore[import-untyped]
    import s3fs  # type: ignore[import-untyped]

    session = aiobotocore.session.AioSession
    taken = _parameters(s3fs.S3FileSystem.__init__) | _parameters(session.__init__)
    for section, given, known in (
        ("storage.s3", options.keys(), taken | _FSSPEC_KEYS),
        (
            "storage.s3.client_kwargs",
            options.get("client_kwargs", {}).keys(),
            _parameters(session._create_client),
        ),
    ):
        for key in sorted(given - known):
            raise UsageError(
                f"{section}.{key}: s3fs has no such option; {did_you_mean(key, known)}see its documentation"
            )


def _parameters(function: Any) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)) - {"self"}
