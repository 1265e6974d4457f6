"""Description of a job's error: one line, the place in the user's code, and the traceback without the JVM's stack.

The error of a Spark task arrives as the text of a Java exception that quotes the Python worker's traceback. The description
contains only this traceback, because the user needs it to find the cause.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: maximum characters of an error's line and of a place, maximum lines of a traceback; the rest is cut
ERROR_LENGTH_MAX = 500
PLACE_LENGTH_MAX = 300
TRACE_LINES_MAX = 80

_BEGIN = "Traceback (most recent call last):"
_LINKS = frozenset(
    (
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    )
)
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_JAVA_STACK = re.compile(r"\n\s*at .*", re.DOTALL)
_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
_OURS = frozenset(
    ("deploy", "direct", "driver", "executor_agent", "forebay", "pyspark_forebay", "receiver", "recovery", "wal")
)
_PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_PYSPARK = re.compile(r"pyspark\.zip|py4j-[^/]*\.zip|/(pyspark|py4j)/")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/")


@dataclass(frozen=True, slots=True)
class JobProblem:
    """A job's error. ``error``: class and message, one line. ``place``: where the user's code raised it, one line; "" if no
    frame is the user's. ``trace``: the traceback."""

    error: str
    place: str
    trace: str

    @property
    def text(self) -> str:
        return f"{self.error} at {self.place}" if self.place else self.error


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: int
    function: str
    code: str


def describe(error: BaseException) -> JobProblem:
    """Return the description of ``error``, which a job or its engine raised."""
    raised = _frames_of(error)
    said = _message(error)
    worker = _worker_traceback(said)
    if worker is None:
        text = _JAVA_STACK.sub("", said)
        name = type(error).__name__
        message = f"{name}: {text}" if text else name
        trace = _JAVA_STACK.sub("", "".join(traceback.format_exception(error)))
        return JobProblem(_line(message, ERROR_LENGTH_MAX), _place(raised), _cut(trace.splitlines()))
    message, frames, lines = worker
    return JobProblem(_line(message, ERROR_LENGTH_MAX), _place(frames) or _place(raised), _cut(lines))


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # the user's class may do anything
        return f"(no message: its __str__ raised {type(failure).__name__})"


def _frames_of(error: BaseException) -> list[_Frame]:
    found = traceback.extract_tb(error.__traceback__)
    return [_Frame(f.filename, f.lineno or 0, f.name, f.line or "") for f in found]


def _worker_traceback(text: str) -> tuple[str, list[_Frame], list[str]] | None:
    """Return the last line, the frames and all lines of the first traceback in ``text``, with the exceptions that caused it;
    None if there is no traceback."""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.endswith(_BEGIN)), None)
    if begin is None:
        return None
    taken = [_BEGIN]
    message, frames = "", list[_Frame]()
    for number in range(begin + 1, len(lines)):
        line = lines[number]
        if line.lstrip().startswith("at ") and "(" in line:  # Java's own stack begins
            break
        if line.strip() == _BEGIN:
            message, frames = "", []
        elif (match := _FRAME.match(line)) is not None:
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
            code = "" if code.startswith("File ") else code
            frames.append(_Frame(match["file"], int(match["line"]), match["function"], code))
        elif (
            not line.strip()
            and message
            and not _LINKS.intersection((*lines[number - 1 : number], *lines[number + 1 : number + 2]))
        ):
            break
        elif line and not line[0].isspace() and line not in _LINKS:
            message = f"{message} {line}" if message else line
        taken.append(line)
    while taken and not taken[-1].strip():
        taken.pop()
    return (message, frames, taken) if message else None


def _place(frames: Sequence[_Frame]) -> str:
    """Return the innermost frame of the user's code; if there is none, of an installed package."""
    candidates = [frame for frame in frames if not _is_ours(frame.file)]
    users = [frame for frame in candidates if not _is_library(frame.file)]
    installed = [frame for frame in candidates if _LIBRARY.search(frame.file) and "-packages/" in frame.file]
    for found in (*reversed(users), *installed):
        code = f": {found.code}" if found.code else ""
        return _line(f"{found.file}:{found.line} in {found.function}{code}", PLACE_LENGTH_MAX)
    return ""


def _is_ours(file: str) -> bool:
    """Whether the file is Forebay's, even if it was shipped elsewhere, or PySpark's."""
    if file.startswith("<frozen") or _PYSPARK.search(file):
        return True
    parts = Path(file).parts
    tails = (parts[begin:] for begin, folder in enumerate(parts[:-1]) if folder in _OURS)
    return any(_ROOT.joinpath(*tail).is_file() for tail in tails)


def _is_library(file: str) -> bool:
    return file.startswith(_PYTHON) or _LIBRARY.search(file) is not None


def _encodable(text: str) -> str:
    """Return the text with lone surrogates, which neither the journal nor a terminal accepts, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _line(text: str, length_max: int) -> str:
    line = _encodable(" ".join(text.split()))
    return line if len(line) <= length_max else line[: length_max - 1] + "…"


def _cut(lines: Iterable[str]) -> str:
    kept = list(lines)
    if len(kept) > TRACE_LINES_MAX:
        first = TRACE_LINES_MAX // 4
        last = TRACE_LINES_MAX - first - 1
        kept = [*kept[:first], f"  … {len(kept) - first - last} lines left out …", *kept[-last:]]
    return "\n".join(_encodable(line)[:ERROR_LENGTH_MAX] for line in kept)
