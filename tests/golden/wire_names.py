"""Prints the tag and the encoded fields of every message, event and report: `python -m tests.golden.wire_names`.

The output is `v1-names/structs.json`. Add to it what is new. What is there stays: other releases, journals, WALs and programs
that read `--json` know it.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec

PACKAGES = ("forebay", "wal", "receiver", "driver", "executor_agent", "direct", "recovery", "deploy", "pyspark_forebay")


def wire_names() -> list[dict[str, Any]]:
    """Return one entry per struct of the packages: its tag ("" without one) and its encoded field names, in order."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if ".examples" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    entries = {
        (str(struct.__struct_config__.tag or ""), struct.__struct_encode_fields__)
        for struct in _structs(msgspec.Struct)
        if struct.__module__.split(".")[0] in PACKAGES
    }
    return [{"tag": tag, "fields": list(fields)} for tag, fields in sorted(entries)]


def _structs(parent: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for struct in parent.__subclasses__():
        yield struct
        yield from _structs(struct)


if __name__ == "__main__":
    print(json.dumps(wire_names(), indent=1))
