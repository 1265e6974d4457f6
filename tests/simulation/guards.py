"""Guards of the product that ``mutations.py`` removes, one at a time: ``guards.toml``.

A guard is a line whose absence shows only under a race, a crash, a faulty store or a late message.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

FILE = Path(__file__).with_suffix(".toml")


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``path``: the module, in which ``code`` occurs once and becomes ``instead``.

    ``test``: a file of tests that notice the removal; they run if the simulation does not notice it within its budget.
    ``variant``: of the simulation that most likely notices it; "" for the common one.
    """

    name: str
    path: str
    code: str
    instead: str
    test: str
    variant: str = ""


class _File(msgspec.Struct):
    guards: tuple[Guard, ...]


GUARDS = msgspec.toml.decode(FILE.read_bytes(), type=_File).guards
