"""A record as text, JSON or hex."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from deploy.commands.inspection.tap.paths import Path
from deploy.commands.inspection.tap.selection import NO_DOCUMENT, document_of
from deploy.console.batch_tables import moment
from forebay import messages as m
from forebay.model.text import one_line, printable_json

_HEX_BYTES = 16


def cut(record: m.RecordEntry, bytes_max: int) -> m.RecordEntry:
    """Return the record with at most ``bytes_max`` bytes of key and value."""
    if max(len(record.key or b""), len(record.value or b"")) <= bytes_max:
        return record
    key = None if record.key is None else record.key[:bytes_max]
    value = None if record.value is None else record.value[:bytes_max]
    return msgspec.structs.replace(record, key=key, value=value, truncated=True)


def as_text(record: m.RecordEntry, paths: tuple[Path, ...] = ()) -> str:
    """Return the record as one line, without control characters. ``paths``: show only these parts of a JSON value."""
    rest = " …" if record.truncated else ""
    value = _text(record.value)
    if paths:
        document = document_of(record.value)
        value = f"(no JSON) {value}" if document is NO_DOCUMENT else " ".join(_values(path, document) for path in paths)
    return f"{_place(record)}  {_text(record.key)}  {value}{rest}"


def as_hex(record: m.RecordEntry) -> str:
    """Return the record as a line with its place, and lines with offset, bytes and characters of key and value."""
    lines = [_place(record)]
    for name, data, size in (("key", record.key, record.key_bytes), ("value", record.value, record.value_bytes)):
        if data is None:
            lines.append(f"  {name}: null")
            continue
        more = f", the first {len(data)} are shown" if len(data) < size else ""
        lines.append(f"  {name}: {size} bytes{more}")
        lines += [f"    {at:08x}  {_row(data[at : at + _HEX_BYTES])}" for at in range(0, len(data), _HEX_BYTES)]
    return "\n".join(lines)


def as_json(record: m.RecordEntry, paths: tuple[Path, ...] = ()) -> str:
    """Return the record as one JSON document in a line.

    A key or value that is UTF-8 is a text, ``value_json`` is the document in it, and other bytes are in ``key_base64`` or
    ``value_base64``.
    """
    made: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_plain("key", record.key),
    }
    document = document_of(record.value)
    if paths and document is not NO_DOCUMENT:
        made["parts"] = {path.text: path.values(document) for path in paths}
    elif document is not NO_DOCUMENT and not record.truncated:
        made["value_json"] = document
    else:
        made |= _plain("value", record.value)
    if record.headers:
        made["headers"] = [{"name": header.name, **_plain("value", header.value)} for header in record.headers]
    if record.truncated:
        made |= {"truncated": True, "key_bytes": record.key_bytes, "value_bytes": record.value_bytes}
    return printable_json(msgspec.json.encode(made).decode())


def _place(record: m.RecordEntry) -> str:
    time = moment(record.timestamp_ms) if record.timestamp_ms >= 0 else "-"
    return f"{time}  {one_line(record.topic)}/{record.partition}@{record.offset}"


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return one_line(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _values(path: Path, document: Any) -> str:
    found = path.values(document)
    shown = found[0] if len(found) == 1 else found
    return one_line(f"{path.text}={msgspec.json.encode(shown).decode()}") if found else f"{path.text}="


def _plain(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _row(data: bytes) -> str:
    shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)
    return f"{data.hex(' '):<{_HEX_BYTES * 3}} |{shown}|"
