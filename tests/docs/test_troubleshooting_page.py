"""docs/troubleshooting.md quotes messages as the code writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.run.wheel import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
#: Spark and librdkafka write these
OTHERS = {"DATA_SOURCE_NOT_FOUND", "Python worker failed to connect back"}
MESSAGES = [
    title for title in re.findall(r"^### (.*)$", PAGE, re.MULTILINE) if title not in OTHERS and "SASL" not in title
]
#: shorter parts occur in any text
_PART_CHARACTERS_MIN = 8
_PACKAGES = (
    "forebay",
    "wal",
    "receiver",
    "driver",
    "executor_agent",
    "direct",
    "recovery",
    "deploy",
    "pyspark_forebay",
)


def texts_of(node: ast.AST) -> str:
    """Return the text of a string; of an f-string with … for each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def texts() -> str:
    """Return every text in the code of the packages, one a line."""

    def found() -> Iterator[str]:
        for package in _PACKAGES:
            for path in (ROOT / package).rglob("*.py"):
                yield from map(texts_of, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))

    return "\n".join(" ".join(text.split()) for text in found() if text)


@pytest.mark.parametrize("message", MESSAGES)
def test_page_quotes_a_message_that_the_code_writes(message: str) -> None:
    parts = [part.strip(" :;,") for part in message.split("…")]
    long = [part for part in parts if len(part) >= _PART_CHARACTERS_MIN]
    assert long, message
    assert [part for part in long if part not in texts()] == []


def test_every_message_has_a_cause_and_a_step() -> None:
    for section in PAGE.split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        assert len(body.partition("\n## ")[0].split()) > 8, title
