"""Each function that decodes bytes is reached by a reader of the fuzzer with valid bytes, or a reason says why it has none."""

from __future__ import annotations

import ast
import contextlib
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.readers import readers

_ROOT = Path(__file__).parents[2]
_PACKAGES = (
    "forebay", "driver", "receiver", "wal", "deploy", "recovery", "direct", "executor_agent", "pyspark_forebay", "forebay_start",
)  # fmt: skip
#: calls that decode bytes or a document. Patterns, splits and conversions of a single number are not found by these names.
_CALLS = frozenset((
    "json.loads", "tomllib.loads", "msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.convert", "msgspec.toml.decode",
    "pa.ipc.open_stream", "pa.ipc.open_file", "pa.ipc.read_schema", "pa.ipc.read_record_batch", "base64.b64decode",
))  # fmt: skip
_METHODS = frozenset(("unpack", "unpack_from", "FromString", "ParseFromString", "schemaless_reader"))
_DECODERS = frozenset(("_decoder", "decoder"))

_BY_SENDER = "the bytes are those of a process of the same job"
#: functions without a reader
_REASONS = {
    ("deploy/commands/debug/bundle.py", "_cleaned"): "its own encoding",
    ("deploy/commands/trial/demo_check.py", "counting"): "records that the demo produced",
    ("deploy/examples/dead_letters/jobs.py", "flight"): "an example",
    ("deploy/examples/flights/jobs.py", "totals"): "an example",
    ("deploy/supervision/readiness.py", "_is_own"): "credentials that the kernel made",
    ("direct/rdd/tasks.py", "read_batches"): _BY_SENDER,
    ("driver/batches/tasks/decoding.py", "decode_parts"): "it calls a decoder of bodies, which has readers",
    ("driver/batches/tasks/reading.py", "decode"): _BY_SENDER,
    ("driver/journal/events.py", "refuse_unwritable"): "its own encoding",
    ("driver/journal/log/bounds.py", "decode"): "it reads only what is out of bounds, as in a mutated journal",
    ("driver/outputs/sql.py", "_locked"): "rows of its own table",
    ("driver/spark/frames.py", "record_batches"): _BY_SENDER,
    ("driver/spark/shards.py", "_run"): _BY_SENDER,
    ("forebay/kafka/consume/range_reader.py", "_on_statistics"): "statistics of librdkafka",
    ("forebay/schemas/proto_source.py", "compiled"): "descriptors that protoc made",
    ("forebay/schemas/protobuf.py", "_files"): "descriptors that protoc made",
    ("pyspark_forebay/progress.py", "offsets_behind_latest"): "progress that Spark made",
    ("pyspark_forebay/progress.py", "kafka_progress"): "progress that Spark made",
    ("pyspark_forebay/sink/rows.py", "unpack_rows"): _BY_SENDER,
    ("receiver/sources/custom_records.py", "_own"): "its own encoding",
    ("wal/keyed/files.py", "columns"): "a schema in a manifest that was compared with the journal",
}


def _is_decoding(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    name = ast.unparse(call.func)
    is_decoder = call.func.attr == "decode" and name.split(".")[-2] in _DECODERS
    return name in _CALLS or call.func.attr in _METHODS or is_decoder


def _decoding() -> dict[str, dict[str, set[int]]]:
    """Return file → function → lines with such calls."""
    found: dict[str, dict[str, set[int]]] = {}
    for path in (path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _is_decoding(call):
                    found.setdefault(str(path), {}).setdefault(function.name, set()).add(call.lineno)
    return found


def _reached(files: set[str]) -> set[tuple[str, int]]:
    """Return the lines of ``files`` that readers run with the bytes that they are mutated from."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    every, before = readers().values(), sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        for reader in every:
            for data in reader.honest + reader.refused:
                with contextlib.suppress(*reader.allowed):
                    reader.read(data)
    finally:
        sys.settrace(before)
        threading.settrace(before)
    return lines


def test_each_function_that_decodes_bytes_has_a_reader_or_a_reason() -> None:
    decoding = _decoding()
    reached = _reached(set(decoding))
    missing = {
        (str(Path(file).relative_to(_ROOT)), name)
        for file, functions in decoding.items()
        for name, lines in functions.items()
        if not any((file, line) in reached for line in lines)
    }
    assert missing - _REASONS.keys() == set(), "add a reader, or a reason"
    assert _REASONS.keys() - missing == set(), "a reason that no function needs"
