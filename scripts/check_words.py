"""Refuses private and archaic wording in what people read: docs, docstrings, comments, help, errors, log lines and names.

    python scripts/check_words.py [PATH ...]

Without a path it reads README, CONTRIBUTING, CHANGELOG, the Makefile, docs, the packages with their page and configurations,
and the tests; with paths, only these files and folders. In a module it reads comments, strings and the names that it defines:
classes, functions, arguments, constants, attributes and variables.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = (
    "forebay", "wal", "receiver", "driver", "executor_agent", "direct", "recovery", "deploy", "pyspark_forebay", "forebay_start",
    "examples", "benchmarks", "scripts",
)  # fmt: skip
#: folders whose names of classes, functions, arguments, constants, attributes and variables are read
FOLDERS_OF_NAMES = frozenset((*PACKAGES, "tests"))

# each: the wording, and what to write instead
WORDS = (
    (r"told", "reported, logged, or name who says it"),
    (r"(?:heard|hears?) of|(?:un)?heard", "known; last heartbeat"),
    (r"amid", "during, in the middle of"),
    (r"but for", "except"),
    (r"shall", "must, or the present tense"),
    (r"in vain", "without success"),
    (r"hinder\w*", "block, prevent"),
    (r"mend(?:s|ed|ing)?", "repair, fix"),
    (r"brought", "name the action: returned, sent, copied"),
    (r"lies", "is stored, is"),
    (r"lets? go", "delete, release"),
    (r"nobody|somebody|whoever", "name the actor"),
    (r"of which", "begin a new sentence"),
    (r"what is more", "also"),
    (r"com(?:e|es|ing) again", "retries"),
    (r"at work", "running"),
    (r"goes by", "depends on, follows"),
    (r"(?:is|are) gone", "no longer exists, was deleted"),
    (r"at once", "immediately; at the same time"),
    (r"so long", "a duration, or while"),
    (r"lineages?", "timeline"),
    (r"deciding thread", "decision loop"),
    (r"(?:given|spare) cop(?:y|ies)", "cached copy"),
    (r"second (?:cop(?:y|ies)|hosts?)", "replica, replica host"),
    (r"own sources?", "custom source"),
    (r"told errors", "recent errors"),
    # not "life cycle", nor "life 2" as in "flights/0[10, 20) life 2", which commands print and accept
    (r"life(?![ -]cycles?| [0-9(]| N\b| $)|(?:the|these|its|old|new|ended) lives", "incarnation"),
    (r"holes?", "gap; missing offsets, missing segments"),
    (r"(?<!/)troubles?", "fault"),  # not the route
    (r"stands?(?!\s+(?:by|for|in\s+for|still)\b)", "is, is stored"),
    # a program that gives up has no object
    (
        r"given up|g(?:ive|ives|ave|iving) up (?:an?|the|its|their|everything|nothing|blocks|offsets)",
        "delete, release, skip",
    ),
    (
        r"(?:in|with|in the|its|their|own|\w+['’]s) words|without a word|person['’]s word|a clear word",
        "text, message, error",
    ),
)
# each: parts of a name in snake_case or CamelCase, and what to write instead
NAME_WORDS = (
    ("(?:un)?told", "reported, logged"),
    ("(?:un)?heard", "known; last heartbeat"),
    ("news", "last heartbeat; update"),
    ("spare", "cached, reserve, margin"),
    ("amid", "during"),
    ("in_vain|vain", "without success"),
    ("given_up", "deleted, released, skipped"),
    ("words", "message, text, reason"),
    ("shall", "must"),
    ("hinder(?:s|ed)?", "block, prevent"),
    ("mend(?:s|ed)?", "repair, fix"),
    ("brought", "name the action: returned, sent, copied"),
    ("nobody|somebody|whoever", "name the actor"),
    ("lineages?", "timeline"),
    ("holes?", "gap; missing offsets, missing segments"),
    ("troubles?", "fault"),
)
REFUSED_NAMES = re.compile(
    "|".join(rf"(?P<w{number}>(?<![^_])(?:{word})(?![^_]))" for number, (word, _) in enumerate(NAME_WORDS))
)

_REFUSED = re.compile(
    "|".join(rf"(?P<w{number}>\b(?:{word})\b)" for number, (word, _) in enumerate(WORDS)), re.IGNORECASE
)

# a file and a wording that stays there, with the reason
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("pyspark_forebay/kafka/planning.py", "are gone"): "the text of Spark's own error",
    ("tests/pyspark_forebay/kafka/test_planning.py", "are gone"): "the same",
    ("tests/pyspark_forebay/kafka/test_data_loss.py", "are gone"): "the same",
    ("scripts/http_page.py", "life"): "a name on the wire, which the page explains",
    ("scripts/http_page.py", "trouble"): "the same",
    ("driver/tracker/cursors.py", "at work"): "a state of cursors in the answer of GET /v1/status",
    ("tests/driver/tracker/cursors/test_ends.py", "at work"): "a state of cursors in the answer of GET /v1/status",
    ("tests/deploy/test_asking_the_driver.py", "at work"): "the same",
    ("tests/driver/http/test_observation.py", "at work"): "the same",
    ("tests/pyspark_forebay/intake/test_queries.py", "at work"): "the same",
    ("tests/driver/web/canned.py", "at work"): "the same",
    ("driver/web/static/parts.js", "at work"): "the same",
    ("driver/web/static/views/cursors.js", "at work"): "the same",
    ("driver/web/static/parts.js", "trouble"): "a state of partitions in the answers of the driver",
    ("driver/web/static/views/overview.js", "trouble"): "the same",
    ("driver/web/static/views/partitions.js", "trouble"): "the same",
    ("deploy/examples/word_count/structured.py", "words"): "the example counts words",
}
#: they quote the words
_ABOUT_WORDS = ("scripts/check_words.py", "tests/suite/test_words.py")
#: kinds of files beside modules and pages, by the ends of their names
_OTHER_KINDS = (
    "Makefile", "Dockerfile", ".toml", ".yml", ".yaml", ".sh", ".js", ".html", ".css", ".ipynb", ".tpl", ".service", "NOTES.txt",
)  # fmt: skip
#: others wrote them
_FOREIGN = ("/vendor/",)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each text that people read, with its line: a file without code in backticks, or a module's comments and strings."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        source = "\n".join("".join(cell["source"]) for cell in json.loads(source)["cells"])
    if path.suffix == ".js":
        source = re.sub(
            r"(?<=[\w)\]?])\.\w+", "", source
        )  # a property is a name on the wire, or one that JavaScript has
    elif path.suffix != ".py":
        source = re.sub(r"```.*?```|`[^`\n]+`", lambda code: "\n" * code[0].count("\n"), source, flags=re.DOTALL)
    if path.suffix != ".py":
        yield 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
        # a string without a space is a name on the wire or on disk; " told " in f"{x} told {y}" is text
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value if id(node) in parts else node.value.strip()
            if " " in text:
                yield node.lineno, re.sub(r"``[^`]*``", "", text)


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name that a module defines, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def snake_case(name: str) -> str:
    """Return ``name`` in lower case, with an underscore between the parts of a name in CamelCase."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def problems(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    for line, text in sorted(texts(path)):
        for found in _REFUSED.finditer(text):
            wording, instead = WORDS[int(str(found.lastgroup)[1:])]
            if (name, found[0].lower()) not in EXCEPTIONS and (name, wording) not in EXCEPTIONS:
                yield f"{name}:{line + text.count(chr(10), 0, found.start())}: “{found[0]}”: {instead}"
    if path.suffix == ".py" and name.split("/")[0] in FOLDERS_OF_NAMES:
        for line, defined in sorted(names(ast.parse(path.read_text(encoding="utf-8")))):
            for found in REFUSED_NAMES.finditer(snake_case(defined)):
                if (name, defined) not in EXCEPTIONS:
                    yield f"{name}:{line}: “{found[0]}” in the name {defined}: {NAME_WORDS[int(str(found.lastgroup)[1:])][1]}"


def files(paths: list[str]) -> list[str]:
    """Return the modules and pages below ``paths``, or all of them without a path."""
    chosen = paths or [
        "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "mkdocs.yml", "docs", "tests", *PACKAGES,
    ]  # fmt: skip
    tracked = subprocess.run(
        ["git", "ls-files", "--", *chosen], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [
        file
        for file in tracked
        if file.endswith((".py", ".md", *_OTHER_KINDS))
        and file not in _ABOUT_WORDS
        and not any(folder in file for folder in _FOREIGN)
    ]


def main(paths: list[str]) -> int:
    seen = [problem for file in files(paths) for problem in problems(ROOT / file)]
    print("\n".join(seen))
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
