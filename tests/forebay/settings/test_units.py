"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.model.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("1s", 1.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0), (" 3 s ", 3.0), ("0ms", 0.0)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("1B", 1), ("64MB", 64_000_000), ("64MiB", 64 * 2**20), ("1.5KB", 1500), ("0.3KB", 300)]
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "ms", "-1s", "1 week", "1e3s", "1,5s", "infs", 5, None, True, ["1s"]])
def test_what_is_no_duration_is_refused_with_the_units(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a number and one of ms, s, m, h, d"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=2**63 // 2**40 - 1))
def test_a_size_is_exact(count: int) -> None:
    assert parse_size(f"{count}TiB") == count * 2**40
