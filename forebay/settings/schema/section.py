"""The base of the sections of ``forebay.toml``, and the description of a key.

Modules with a section do not import ``annotations`` from ``__future__``: evaluating annotations from strings takes most of the
time of loading a configuration.
"""

from __future__ import annotations

import msgspec
from msgspec import Meta


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One section of ``forebay.toml``. The first paragraph of a subclass's docstring describes it in docs/SETTINGS.md."""


def doc(description: str, *, example: object = None) -> Meta:
    """Return the description of a key, for errors, docs/SETTINGS.md and one-machine.toml.

    Args:
        description: A noun phrase with unit and effect, which begins with a small letter and ends without a period.
        example: Value that one-machine.toml shows for a key whose default is None.
    """
    return Meta(description=description, examples=None if example is None else [example])
