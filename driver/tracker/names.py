"""Names that came over the wire."""

from __future__ import annotations

from forebay.model.errors import UsageError
from forebay.model.values import check_name


def check_names(*names: tuple[str, str]) -> None:
    """Raise UsageError if one of ``names``, each a kind ("host") and a name, is not a name."""
    for kind, name in names:
        try:
            check_name(kind, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
