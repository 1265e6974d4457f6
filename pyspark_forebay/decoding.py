"""Decoding of keys and values into columns with schemas of a registry: options, reader's schemas, and the decoding in
tasks.

The query reads the reader's schema from the registry once, when Spark asks for the columns, and keeps it. Each record's
writer schema is resolved to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.kafka.registry.client import CLIENT_OPTIONS, FORMATS, RegistryAccess
from forebay.model.errors import RecordError, UsageError
from forebay.schemas.columns import ColumnDecoding, decode_column
from forebay.schemas.decoder import COLUMNS, ReaderSchema, find_columns
from pyspark_forebay.options.subscription import Subscription
from pyspark_forebay.options.values import whole_number

#: column with the reason why a record was not decoded, in ``mode`` PERMISSIVE
ERROR_COLUMN = "decodeError"
PREFIX = "schema.registry."
_STRATEGIES = ("topic", "record", "topicRecord")
_MODES = ("failfast", "permissive")
_TIMEOUT_MS, _RETRIES = 10_000, 5


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tasks decode keys and values.

    A ``pyspark_forebay.options.source.ColumnDecoder``, which is pickled to the tasks.

    ``permissive``: a record that cannot be decoded becomes null, and ``ERROR_COLUMN`` has the reason; otherwise such a
    record fails its task. ``headers``: whether decoded rows keep the column ``headers``.
    """

    columns: tuple[ColumnDecoding, ...]
    permissive: bool
    headers: bool

    def decoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return ``batches`` with decoded columns. ``batches`` must have the source's columns, including headers.

        Raises RecordError for the first record that cannot be decoded, unless ``permissive``; UnreachableError if the
        registry does not answer.
        """
        return (_decoded(batch, self) for batch in batches)


def find_decoding(options: Mapping[str, str], subscription: Subscription, headers: bool) -> Decoding | None:
    """Read the reader's schemas from the registry and return how to decode; None if no format is set.

    ``options``: option name in lower case → value. Raises UsageError for an invalid option, a subject or schema that the
    registry does not have, and a schema that no column can hold; UnreachableError.
    """
    formats = {name: options[f"{name}format"].strip().lower() for name in COLUMNS if f"{name}format" in options}
    if not formats:
        return None
    for name, format_ in formats.items():
        if format_ not in FORMATS:
            raise UsageError(f"option {name}Format: {format_!r}: allowed are {', '.join(FORMATS)}")
    mode = options.get("mode", _MODES[0]).strip().lower()
    if mode not in _MODES:
        raise UsageError(f"option mode: {mode!r}: allowed are FAILFAST and PERMISSIVE")
    wanted = {name: _reader(name, format_, options, subscription) for name, format_ in formats.items()}
    return Decoding(find_columns(_access(options), wanted), mode == "permissive", headers)


def _reader(name: str, format_: str, options: Mapping[str, str], subscription: Subscription) -> ReaderSchema:
    record = options.get(f"{name}record", "").strip()
    number = whole_number(options, f"{name}SchemaId", at_least=0)
    if number is not None:
        return ReaderSchema(format_, number=number, message=record)
    newest = options.get(f"{name}schemaversion", "latest").strip().lower() == "latest"
    version = None if newest else whole_number(options, f"{name}SchemaVersion", at_least=1)
    subject = options.get(f"{name}subject", "").strip() or _subject(name, options, subscription, record)
    return ReaderSchema(format_, subject, version, message=record)


def _subject(name: str, options: Mapping[str, str], subscription: Subscription, record: str) -> str:
    strategy = options.get("subjectnamestrategy", _STRATEGIES[0]).strip().lower()
    if strategy not in [one.lower() for one in _STRATEGIES]:
        raise UsageError(f"option subjectNameStrategy: {strategy!r}: allowed are {', '.join(_STRATEGIES)}")
    if strategy != "topic" and not record:
        raise UsageError(
            f"option subjectNameStrategy: {strategy!r} needs the option {name}Record: the full name of the record in the {name}"
        )
    if strategy == "record":
        return record
    topics = set(subscription.topics) | {tp.topic for tp in subscription.partitions}
    if len(topics) != 1:
        raise UsageError(
            f"option {name}Format: the query reads several topics or a pattern, so the schema of the column {name} is ambiguous; "
            f"set the option {name}Subject or {name}SchemaId"
        )
    (topic,) = topics
    return f"{topic}-{name}" if strategy == "topic" else f"{topic}-{record}"


def _access(options: Mapping[str, str]) -> RegistryAccess:
    url = options.get(f"{PREFIX}url", "").strip()
    if not url:
        raise UsageError(f"option {PREFIX}url must say where the schema registry is, as in https://registry:8081")
    own = {f"{PREFIX}url", f"{PREFIX}timeout.ms", f"{PREFIX}retries"}
    given = {
        name[len(PREFIX) :]: value for name, value in options.items() if name.startswith(PREFIX) and name not in own
    }
    for name in given:
        if name not in CLIENT_OPTIONS:
            known = ", ".join(("url", "timeout.ms", "retries", *CLIENT_OPTIONS))
            raise UsageError(f"option {PREFIX}{name} is not known: after {PREFIX} allowed are {known}")
    timeout_ms = whole_number(options, f"{PREFIX}timeout.ms", at_least=1) or _TIMEOUT_MS
    retries = whole_number(options, f"{PREFIX}retries", at_least=0)
    attempts = 1 + (_RETRIES if retries is None else retries)
    return RegistryAccess(url, tuple(sorted(given.items())), timeout_ms / 1000, attempts)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _decoded(batch: pa.RecordBatch, decoding: Decoding) -> pa.RecordBatch:
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    errors: dict[int, list[str]] = {}
    for one in decoding.columns:
        columns[one.column], causes = decode_column(one, batch)
        for row, cause in causes.items():
            errors.setdefault(row, []).append(f"{one.column}: {cause}")
    if errors and not decoding.permissive:
        row = min(errors)
        where = f"{batch.column('topic')[row]}/{batch.column('partition')[row]} offset {batch.column('offset')[row]}"
        raise RecordError(
            f"{where}: the record can't be decoded: {'; '.join(errors[row])}. The option mode = PERMISSIVE makes such records "
            "null and goes on"
        )
    if not decoding.headers:
        columns.pop("headers", None)
    if decoding.permissive:
        texts = ["; ".join(errors[row]) if row in errors else None for row in range(batch.num_rows)]
        columns[ERROR_COLUMN] = pa.array(texts, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
