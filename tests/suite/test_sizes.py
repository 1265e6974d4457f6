"""CONTRIBUTING, "Write": a class beyond 300 lines and a module beyond 500 say in a sentence why they are one idea."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLASS_LINES_MAX = 300
MODULE_LINES_MAX = 500


def _too_large(text: str) -> Iterator[str]:
    """Return each class and module of a source that is beyond its limit and does not say why it is one idea."""
    module, lines = ast.parse(text), text.splitlines()
    if len(lines) > MODULE_LINES_MAX and not _has_reason("module", ast.get_docstring(module)):
        yield f"module of {len(lines)} lines"
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
            size = node.end_lineno + 1 - node.lineno
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            # a public class, whose docstring is for users, says it in a comment on the line above
            above = lines[first - 2].removeprefix("# ").capitalize() if first > 1 else ""
            said = _has_reason("class", ast.get_docstring(node)) or _has_reason("class", above)
            if size > CLASS_LINES_MAX and not said:
                yield f"class {node.name} of {size} lines"


def _has_reason(kind: str, text: str | None) -> bool:
    return re.search(rf"\bOne {kind}, because( \S+){{3}}", " ".join((text or "").split())) is not None


def _sources() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_each_large_class_and_module_says_why_it_is_one_idea() -> None:
    found = [f"{name}: {one}" for name in _sources() for one in _too_large((ROOT / name).read_text(encoding="utf-8"))]
    assert found == [], "split it, or say why it is one idea (CONTRIBUTING, Write)"


def test_contributing_states_the_same_limits() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Write\n")[2]
    assert f"A class beyond {CLASS_LINES_MAX} lines, or a module beyond {MODULE_LINES_MAX}," in " ".join(page.split())


def _class_of(lines: int, docstring: str = "", above: str = "") -> str:
    body = [f'    """{docstring}"""'] if docstring else []
    body += ["    x = 1"] * (lines - 1 - len(body))
    return "\n".join([*([above] if above else []), "class Large:", *body]) + "\n"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (_class_of(CLASS_LINES_MAX), []),
        (_class_of(CLASS_LINES_MAX + 1), ["class Large of 301 lines"]),
        (_class_of(CLASS_LINES_MAX + 1, "All. One class, because each call reads the same lock."), []),
        (_class_of(CLASS_LINES_MAX + 1, "All. One class, because."), ["class Large of 301 lines"]),
        (_class_of(CLASS_LINES_MAX + 1, above="# one class, because it is what a job gets"), []),
        (_class_of(CLASS_LINES_MAX + 1, above="# one more class"), ["class Large of 301 lines"]),
        ("x = 1\n" * MODULE_LINES_MAX, []),
        ("x = 1\n" * (MODULE_LINES_MAX + 1), ["module of 501 lines"]),
        ('"""All. One module, because these are one format."""\n' + "x = 1\n" * MODULE_LINES_MAX, []),
        ('"""One class, because these are one format."""\n' + "x = 1\n" * MODULE_LINES_MAX, ["module of 501 lines"]),
    ],
)
def test_large_class_or_module_without_a_reason_is_refused(text: str, refused: list[str]) -> None:
    assert list(_too_large(text)) == refused
