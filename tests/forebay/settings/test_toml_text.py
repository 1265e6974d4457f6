"""Values are shown as TOML writes them, so that an error or the example can be copied into a file."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from forebay.model.units import Duration, Size, parse_duration, parse_size
from forebay.settings.toml_text import toml_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Duration(0), '"0s"'), (Duration(0.2), '"200ms"'), (Duration(90), '"90s"'), (Duration(604_800), '"7d"'),
        (Size(0), '"0B"'), (Size(64_000_000), '"64MB"'), (Size(65_536), '"64KiB"'), (Size(1001), '"1001B"'),
    ],
)  # fmt: skip
def test_duration_and_size_are_shown_in_the_largest_unit_that_divides_them(value: Duration | Size, text: str) -> None:
    assert toml_text(value) == text
    parse = parse_duration if isinstance(value, Duration) else parse_size
    assert parse(text.strip('"')) == value


@pytest.mark.parametrize("value", [True, 7, 0.2, 'a "b" \\ é', [], ["a", "b"], {}, {"a": 1, "b.c": ["d"]}], ids=str)
def test_toml_reads_the_shown_value_back(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_text(value)}")["x"] == value
