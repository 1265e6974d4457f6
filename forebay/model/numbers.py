"""Numbers in texts of other programs and of people."""

from __future__ import annotations

from forebay.model.bounds import NUMBER_MAX

#: digits of a text that are converted at all: ``int`` refuses thousands of them with an error of its own
_DIGITS_MAX = 40


def whole_number(text: str | bytes, maximum: int = NUMBER_MAX) -> int | None:
    """Return the number that ``text`` has in decimal digits; None if it has anything else, or a number above ``maximum``.

    A text of more than 40 digits is none, whatever its value. ``int`` and ``str.isdigit`` also take signs, spaces, underscores,
    and digits of other scripts.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= maximum else None
