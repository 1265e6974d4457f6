"""Log lines: text and JSON, fields, UTC, and foreign text that can't pass for an event."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay.process.logs import ITEMS_MAX, ConsoleFormatter, JsonFormatter, fields, relay, relayed

#: what a topic, a key or an error may contain
HOSTILE = [
    'a"b\\c',
    "two\nlines",
    "\x1b[31mred",
    "2026-11-23T08:00:00.000Z ERROR driver: fake",
    "\u202egnp.exe",
    "\udcff",
    "ä=ö ü",
    "",
    "{}%s",
]


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("driver.x", level, "", 0, message, arguments, extra.pop("exc_info", None))
    made.created = 1_795_420_800.1234  # 2026-11-23T08:00:00.123Z
    made.__dict__.update(extra)
    return made


def caught() -> Any:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        return sys.exc_info()


def test_console_line_has_time_in_utc_level_logger_message_and_fields() -> None:
    shown = fields(
        stream="flights", batch=7, seconds=0.123456, gone=None, offsets=("t/0[1,2)", "t/1[0,9)"), tiers={"wal": 2}
    )
    assert ConsoleFormatter().format(record("batch %s", "completed", **shown)) == (
        "2026-11-23T08:00:00.123Z INFO driver.x: batch completed stream=flights batch=7 seconds=0.123 "
        "offsets=t/0[1,2),t/1[0,9) tiers=wal:2"
    )


def test_json_line_has_the_fields_with_their_types() -> None:
    shown = fields(batch=7, seconds=0.123456, gone=None, offsets=("t/0[1,2)",), tiers={"wal": 2}, rerun=True)
    line = JsonFormatter({"service": "driver", "stream": "flights"}).format(record("batch completed", **shown))
    assert json.loads(line) == {
        "time": "2026-11-23T08:00:00.123Z", "level": "info", "logger": "driver.x", "message": "batch completed",
        "service": "driver", "stream": "flights",
        "batch": 7, "seconds": 0.123, "offsets": ["t/0[1,2)"], "tiers": {"wal": 2}, "rerun": True,
    }  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_stays_in_its_field_and_in_its_line(text: str) -> None:
    made = record(
        "partition %s", text, level=logging.ERROR, exc_info=caught(), **fields(topic=text, names=(text, text))
    )
    line = JsonFormatter({}).format(made)
    assert line.isascii() and line.isprintable()
    decoded = json.loads(line)
    assert (decoded["message"], decoded["topic"], decoded["names"]) == (f"partition {text}", text, [text, text])
    assert decoded["trace"].endswith("ValueError: no\nsuch thing")
    first, *rest = ConsoleFormatter().format(made).split("\n")
    assert first.startswith("2026-11-23T08:00:00.123Z ERROR driver.x: partition ")
    assert all(one.startswith("    ") for one in rest), "no line but the first looks like an event"
    assert not set("\x1b\u202e\udcff") & set(first.join(rest))


def test_field_with_many_items_names_some_and_counts_the_others() -> None:
    made = record("m", **fields(offsets=tuple(f"t/{n}" for n in range(ITEMS_MAX + 5))))
    assert json.loads(JsonFormatter({}).format(made))["offsets"][-2:] == [f"t/{ITEMS_MAX - 1}", "5 more"]


def test_lines_of_another_process_keep_their_form() -> None:
    event = '{"time": "…", "message": "m"}'
    assert relayed("words", "receiver-1", as_json=False) == "receiver-1 | words"
    assert relayed(event, "receiver-1", as_json=True) == event
    crash = json.loads(relayed("Fatal Python error: 100 %s", "receiver-1", as_json=True))
    assert (crash["message"], crash["service"], crash["level"]) == ("Fatal Python error: 100 %s", "receiver-1", "info")


class FullDisk(io.StringIO):
    """Takes no line while ``is_full``, as stderr on a full disk: the error comes from the flush."""

    is_full = False

    def flush(self) -> None:
        if self.is_full:
            self.seek(0)
            self.truncate()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_lines_are_relayed_again_when_the_disk_has_space_again() -> None:
    disk = FullDisk()
    seen: list[str] = []

    def see(text: str) -> None:
        seen.append(text)
        disk.is_full = text == "1"

    relay(io.BytesIO(b"1\n2\n3\n4\n"), disk, "r1", as_json=False, seen=see)
    assert seen == ["1", "2", "3", "4"]
    note, *lines = disk.getvalue().splitlines()
    assert "may be missing" in note and os.strerror(errno.ENOSPC) in note
    assert lines == ["r1 | 3", "r1 | 4"]


@pytest.mark.parametrize("as_json", [False, True])
def test_pipe_of_another_process_is_read_to_its_end_although_no_line_can_be_written(as_json: bool) -> None:
    """Its writes would fail otherwise, and its log would end for good."""
    disk = FullDisk()
    seen: list[str] = []
    disk.is_full = True
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        thread = threading.Thread(
            target=relay, args=(pipe, disk, "r1"), kwargs={"as_json": as_json, "seen": seen.append}
        )
        thread.start()
        with os.fdopen(writing, "wb") as process:
            process.writelines(b"%d\n" % number for number in range(50_000))  # far more than a pipe holds
        thread.join(60)
    assert seen[-1] == "49999" and len(seen) == 50_000


@pytest.mark.parametrize(("form", "level"), [("console", "info"), ("json", "warning")])
def test_process_logs_what_the_settings_say(form: str, level: str, tmp_path: Path) -> None:
    code = (
        "import logging, warnings; from forebay.process.logs import configure, fields\n"
        f"configure({form!r}, {level!r}, service='driver')\n"
        "logging.getLogger('a').info('quiet', extra=fields(n=1)); logging.getLogger('a').warning('loud', extra=fields(n=2))\n"
        "warnings.warn('old option')\n"
    )
    lines = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env={"LC_ALL": "C"},
        cwd=Path(__file__).parents[3],
    ).stderr.splitlines()  # fmt: skip
    if form == "console":
        assert [line.split(" ", 1)[1] for line in lines[:2]] == ["INFO a: quiet n=1", "WARNING a: loud n=2"]
        assert "old option" in lines[2]
        return
    first, second = map(json.loads, lines)
    assert (first["message"], first["n"], first["service"]) == ("loud", 2, "driver")
    assert second["logger"] == "py.warnings" and "old option" in second["message"]
