"""The check of names in requests."""

from __future__ import annotations

from forebay.model.errors import UsageError
from forebay.model.identifiers import check_name


def check_names(*names: tuple[str, str]) -> None:
    """Raise UsageError for the first invalid name. ``names``: pairs of a kind (such as "host") and a name."""
    for kind, name in names:
        try:
            check_name(kind, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
