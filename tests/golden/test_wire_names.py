"""The names of messages, events and reports on the wire, on disk and in ``--json`` outlive renames in the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_KNOWN = Path(__file__).parent / "v1-names" / "structs.json"


def test_no_message_event_or_report_loses_a_name() -> None:
    """In a process of its own, since structs that tests define would count too. A struct may get more fields, at any place."""
    printed = subprocess.run(
        [sys.executable, "-m", "tests.golden.wire_names"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    present = [(one["tag"], set(one["fields"])) for one in json.loads(printed)]
    known = [(one["tag"], one["fields"]) for one in json.loads(_KNOWN.read_text(encoding="utf-8"))]
    lost = [(tag, fields) for tag, fields in known if not any(tag == t and set(fields) <= f for t, f in present)]
    assert len(known) > 200 and not lost
