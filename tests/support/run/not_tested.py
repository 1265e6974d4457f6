"""The summary of a test run: tests that did not run because this machine lacks something, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

#: how the reason of such a skip begins
MARK = "NOT TESTED: "
_LINE_CHARACTERS_MAX = 300


def reasons(skipped: Iterable[object]) -> Counter[str]:
    """Count the tests of each reason among pytest's reports of skipped tests; other skips do not count."""
    found: Counter[str] = Counter()
    for report in skipped:
        described = getattr(report, "longrepr", None)
        text = described[2] if isinstance(described, tuple) else str(described)
        _, mark, reason = text.partition(MARK)
        if mark:
            found[" ".join(reason.split())[:_LINE_CHARACTERS_MAX]] += 1
    return found


def write_summary(reporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason, most tests first, or nothing if every test ran."""
    found = reasons(reporter.stats.get("skipped", ()))
    if not found:
        return
    reporter.section(f"not tested: {found.total()} tests", yellow=True)
    for reason, count in found.most_common():
        reporter.line(f"{count:5} × {reason}")
    reporter.line("`make services` fetches what can be fetched; the rest is what this machine does not allow.")
