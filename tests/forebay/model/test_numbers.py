"""Numbers in texts of other programs and of people."""

from __future__ import annotations

import pytest

from forebay.model.bounds import INT32_MAX, NUMBER_MAX
from forebay.model.numbers import whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), (b"42", 42), (str(NUMBER_MAX), NUMBER_MAX)])
def test_digits_are_a_number(text: str | bytes, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", " 1", "1 ", "1_0", "1.0", "0x1", "²", "٣", b"\xb2", str(NUMBER_MAX + 1), "9" * 5000, b"9" * 5000],
)
def test_other_text_is_no_number(text: str | bytes) -> None:
    assert whole_number(text) is None


def test_number_above_the_most_is_none() -> None:
    assert (whole_number(str(INT32_MAX), INT32_MAX), whole_number(str(INT32_MAX + 1), INT32_MAX)) == (INT32_MAX, None)
