"""Log lines of services on stderr: one line per event, as text for people or as JSON. Times are UTC.

A call passes the fields of an event beside its message: ``log.info("batch completed", extra=fields(batch=7))``.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from forebay.model.text import one_line, printable
from forebay.model.units import utc_text

#: maximum number of items of a field with several values; the rest is counted
ITEMS_MAX = 20
#: maximum part of another process's line that is written as one line
LINE_BYTES_MAX = 64_000
#: loggers of libraries that log each of their own steps at INFO
_TALKATIVE = ("py4j", "httpx", "httpcore", "asyncio")


def fields(**values: object) -> dict[str, Any]:
    """Return the ``extra`` of a log call with ``values`` as the fields of the event. A field that is None or () is left out."""
    return {"fields": {key: value for key, value in values.items() if value is not None and value != ()}}


def configure(form: str, level: str, **constant: str) -> None:
    """Log to stderr. ``form``, ``level``: as ``log.format`` and ``log.level``. ``constant``: fields of every line of this
    process, which only JSON shows.

    Warnings of Python's ``warnings`` are logged too. Does nothing if the program has configured logging already.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(constant) if form == "json" else ConsoleFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper())
    logging.captureWarnings(True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def is_json() -> bool:
    """Return whether this process logs as JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


class ConsoleFormatter(logging.Formatter):
    """``TIME LEVEL LOGGER: MESSAGE KEY=VALUE …``. Lines of a message or a traceback after the first one are indented, so foreign
    text can't look like an event of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = " ".join([record.getMessage(), *(f"{key}={_text(value)}" for key, value in _fields(record).items())])
        line = f"{utc_text(round(record.created * 1000), 'milliseconds')} {record.levelname} {record.name}: {message}"
        return printable("\n".join(filter(None, [line, _traces(self, record)]))).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object in ASCII for each event, with ``time``, ``level``, ``logger``, ``message``, the fields, and ``trace``."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        super().__init__()
        self._constant = dict(constant)

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": utc_text(round(record.created * 1000), "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._constant,
            **{key: _bounded(value) for key, value in _fields(record).items()},
        }
        if trace := _traces(self, record):
            event["trace"] = trace
        return json.dumps(event, default=str)


def relayed(line: str, source: str, as_json: bool) -> str:
    """Return a line of another process for this one's stderr. ``source``: name of that process.

    As JSON, a line that is not an event, such as a crash report, becomes the message of one.
    """
    if not as_json:
        return f"{source} | {line}"
    if line.startswith("{") and line.endswith("}"):
        return line
    record = logging.LogRecord(source, logging.INFO, "", 0, line, (), None)
    return JsonFormatter({"service": source}).format(record)


def relay(
    pipe: IO[bytes],
    stream: IO[str],
    source: str,
    *,
    as_json: bool,
    seen: Callable[[str], None] = lambda text: None,
) -> None:
    """Write the lines of another process, read from ``pipe``, to ``stream`` until the pipe is closed.

    If ``stream`` takes no lines, as on a full disk, the pipe is still read: a process without a reader of its pipe could never
    write a line again. The next line that ``stream`` takes comes after a note that earlier lines may be missing. ``seen``: called
    with each line, also with one that was not written.
    """
    failure = ""
    with pipe:
        for line in iter(lambda: pipe.readline(LINE_BYTES_MAX), b""):
            text = line.decode("utf-8", "replace").rstrip()
            note = f"lines before this one may be missing, because they could not be written: {failure}"
            try:
                for message in (note, text) if failure else (text,):
                    stream.write(relayed(message, source, as_json) + "\n")
                stream.flush()
                failure = ""
            except OSError as error:
                failure = error.strerror or str(error)
            seen(text)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, Mapping) else {}


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return "\n".join(filter(None, [trace, stack]))


def _bounded(value: object) -> object:
    """Return a field's value with at most ``ITEMS_MAX`` items, and numbers without needless digits."""
    if isinstance(value, list | tuple):
        more = [f"{len(value) - ITEMS_MAX} more"] if len(value) > ITEMS_MAX else []
        return [*map(str, value[:ITEMS_MAX]), *more]
    return round(value, 3) if isinstance(value, float) else value


def _text(value: object) -> str:
    """Return a field's value as text without spaces, or in quotes."""
    bounded = _bounded(value)
    if isinstance(bounded, Mapping):
        text = ",".join(f"{key}:{item}" for key, item in bounded.items())
    elif isinstance(bounded, list):
        text = ",".join(bounded)
    else:
        text = str(bounded)
    plain = text and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if plain else one_line(json.dumps(text, ensure_ascii=False))
