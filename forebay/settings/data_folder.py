"""The folders that the key ``data`` stands for: of the WAL, the journal, the blocks and the archive of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: key → its value below the folder that ``data`` names; explicit values of these keys win
DERIVED: dict[str, str] = {
    "wal.url": "file://{data}/wal",
    "driver.journal": "file://{data}/journal",
    "agent.blocks": "{data}/blocks",
    "spark.class_archive": "{data}/classes",
}


def filled(raw: Mapping[str, Any], variables: dict[str, str]) -> Mapping[str, Any]:
    """Return ``raw``, as TOML gives it, with the keys of ``DERIVED`` that it leaves out, if it has ``data``.

    ``variables``: key → the environment variable that set it. If one set ``data``, it set the added keys too.
    """
    data = raw.get("data")
    if data is None:
        return raw
    # a value that does not fit is one mistake, not four
    folder = data.rstrip("/") if isinstance(data, str) and data.startswith("/") else ""
    found = dict(raw)
    for key, place in DERIVED.items():
        section, _, name = key.partition(".")
        table = found.get(section, {})
        if isinstance(table, Mapping) and name not in table:
            if "data" in variables:
                variables[key] = variables["data"]
            found[section] = {name: place.format(data=folder), **table}
    return found


def hint(key: str) -> str:
    """Return what to add to the error that ``key``, or a section, is missing; "" if ``data`` does not replace it."""
    replaced = any(key in (derived, derived.partition(".")[0]) for derived in DERIVED)
    return '; or set data = "/a/folder" above the first section, for WAL, journal and blocks' if replaced else ""
