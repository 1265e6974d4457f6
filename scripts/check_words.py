"""Refuses private and archaic wording in what people read: docs, docstrings, comments, help, errors and log lines.

    python scripts/check_words.py [PATH ...]

Without a path it reads README, CONTRIBUTING, CHANGELOG, docs, the packages and the tests; with paths, only these files and
folders. Of tests it also reads the names.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

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
_REFUSED = re.compile(
    "|".join(rf"(?P<w{number}>\b(?:{word})\b)" for number, (word, _) in enumerate(WORDS)), re.IGNORECASE
)

# a file and a wording that stays there, with the reason
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("pyspark_forebay/kafka/planning.py", "are gone"): "the text of Spark's own error",
    ("tests/streaming/kafka/test_planning.py", "are gone"): "the same",
    ("tests/streaming/kafka/test_data_loss.py", "are gone"): "the same",
    ("scripts/http_page.py", "life"): "a name on the wire, which the page explains",
    ("scripts/http_page.py", "trouble"): "the same",
    ("driver/tracker/cursors.py", "at work"): "a state of cursors in the answer of GET /v1/status",
    ("tests/driver/tracker/cursors/test_ends.py", "at work"): "a state of cursors in the answer of GET /v1/status",
    ("tests/deploy/test_asking_the_driver.py", "at work"): "the same",
    ("tests/driver/http/test_observation.py", "at work"): "the same",
    ("tests/streaming/intake/test_queries.py", "at work"): "the same",
    ("tests/web/canned.py", "at work"): "the same",
}
#: they quote the words
_ABOUT_WORDS = ("scripts/check_words.py", "tests/suite/test_words.py")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each text that people read, with its line: a page without its code, or a module's comments and strings."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, re.sub(r"```.*?```|`[^`\n]+`", lambda code: "\n" * code[0].count("\n"), source, flags=re.DOTALL)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
        # a string without a space is a name on the wire or on disk
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, re.sub(r"``[^`]*``", "", node.value)


def problems(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    for line, text in sorted(texts(path)):
        for found in _REFUSED.finditer(text):
            wording, instead = WORDS[int(str(found.lastgroup)[1:])]
            if (name, found[0].lower()) not in EXCEPTIONS and (name, wording) not in EXCEPTIONS:
                yield f"{name}:{line + text.count(chr(10), 0, found.start())}: “{found[0]}”: {instead}"


def files(paths: list[str]) -> list[str]:
    """Return the modules and pages below ``paths``, or all of them without a path."""
    chosen = paths or ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "tests", *_packages()]
    tracked = subprocess.run(
        ["git", "ls-files", "--", *chosen], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [file for file in tracked if file.endswith((".py", ".md")) and file not in _ABOUT_WORDS]


def main(paths: list[str]) -> int:
    seen = [problem for file in files(paths) for problem in problems(ROOT / file)]
    print("\n".join(seen))
    return 1 if seen else 0


def _packages() -> list[str]:
    return [
        "forebay",
        "wal",
        "receiver",
        "driver",
        "executor_agent",
        "direct",
        "recovery",
        "deploy",
        "pyspark_forebay",
        "forebay_start",
        "examples",
        "benchmarks",
        "scripts",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
