"""Lists of an answer: filters, and pages that continue after a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from forebay.model.errors import UsageError

Item = TypeVar("Item")

#: maximum entries of a page, and the number without ``limit``
LIMIT_MAX, LIMIT = 1_000, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which entries of a list a client wants.

    ``after``: "" for the first page, else ``next`` of the page before. ``state``: "" for all. ``text``: part of the name, without
    regard to case.
    """

    limit: int = LIMIT
    after: str = ""
    state: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page. ``total``: entries that match the filter, on all pages. ``next``: "" after the last page."""

    total: int
    next: str
    items: tuple[Item, ...]


def check_limit(limit: int) -> None:
    """Raise UsageError if a page can't have ``limit`` entries."""
    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"limit is from 1 to {LIMIT_MAX}, not {limit}")


def page(items: Iterable[Item], query: Query, name: Callable[[Item], str], state: Callable[[Item], str]) -> Page[Item]:
    """Return the page that ``query`` asks for, in the order of ``items``.

    ``name``: a name that no other item has; a page continues after the item of this name. If that item no longer exists, the
    page begins where it would be, by the order of the names. Raises UsageError for a limit outside its bounds.
    """
    check_limit(query.limit)
    wanted = query.text.lower()
    found: Sequence[Item] = [
        item
        for item in items
        if (not query.state or state(item) == query.state) and (not wanted or wanted in name(item).lower())
    ]
    begin = _place_after(found, query.after, name) if query.after else 0
    shown = tuple(found[begin : begin + query.limit])
    more = begin + len(shown) < len(found)
    return Page(len(found), name(shown[-1]) if more else "", shown)


def _place_after(items: Sequence[Item], after: str, name: Callable[[Item], str]) -> int:
    for at, item in enumerate(items):
        if name(item) == after:
            return at + 1
    return sum(name(item) < after for item in items)
