"""docs/operations explains every state that `status` and listeners can show, and names only existing settings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import msgspec
import pytest

from driver.decisions import problems
from driver.http import health
from driver.listeners import events as listeners
from forebay.settings.schema import Settings
from tests.support.run.wheel import ROOT

INDEX = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "operations").glob("*.md"))}
STATES = PAGES["states.md"]
PROBLEMS = PAGES["status.md"].partition("\n## Problems\n")[2].partition("\n#")[0]
#: whose ``state`` a person is shown
SERVICES = ("driver", "receiver", "executor_agent")
#: modules without it give no text to a state, and need no syntax tree
_MAY_GIVE_STATE = re.compile(r"\b_?state\b.*=|\bdef \w*_state\b")


def states() -> Iterator[str]:
    """Every text that the services' code gives to something called ``state``."""
    for service in SERVICES:
        for path in (ROOT / service).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if _MAY_GIVE_STATE.search(text) else ():
                if isinstance(node, ast.keyword):
                    yield from _texts(node.value) if node.arg == "state" else ()
                elif isinstance(node, ast.Assign):
                    for target, value in _assigned(node):
                        yield from _texts(value) if _name(target) in ("state", "_state") else ()
                elif isinstance(node, ast.FunctionDef) and node.name.endswith("_state"):
                    for returned in (inner for inner in ast.walk(node) if isinstance(inner, ast.Return)):
                        yield from _texts(returned.value)


def _assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target with its value, also for several at the same time."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _name(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


def _texts(value: ast.expr | None) -> Iterator[str]:
    """What an expression may give: of a choice, both sides, and not what is asked."""
    if isinstance(value, ast.IfExp):
        yield from _texts(value.body)
        yield from _texts(value.orelse)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
        yield value.value


@pytest.mark.parametrize("state", sorted(set(states())))
def test_page_of_states_explains_every_state_that_a_service_can_show(state: str) -> None:
    assert f"`{state}`" in STATES, f"docs/operations/states.md does not say what {state!r} means"


@pytest.mark.parametrize(
    "kind",
    sorted(
        str(event.__struct_config__.tag)
        for event in vars(listeners).values()
        if isinstance(event, type) and issubclass(event, listeners._Happened) and event is not listeners._Happened
    ),
)
def test_page_of_status_names_every_kind_of_event(kind: str) -> None:
    assert f"`{kind}`" in PAGES["status.md"]


def kinds_of_problems() -> set[str]:
    """Each kind that the code of the verdict gives a problem."""
    found = set()
    for module in (health, problems):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.Call):
                continue
            given = [word.value for word in node.keywords if word.arg == "kind"]
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "add"
                and _name(node.func.value) == "findings"
            ):
                given += node.args[:1]
            found |= {text for value in given for text in _texts(value)}
    return found | set(health.COMMANDS)


def test_every_kind_of_problem_that_makes_status_end_with_1_is_explained() -> None:
    kinds = kinds_of_problems()
    assert {"job", "partitions-without-receiver", "receiver-gone", "agent-gone", "kafka", "cursor"} <= kinds
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in PROBLEMS] == []


def settings_named() -> set[str]:
    """``section.key`` on the pages, for the sections that have fixed keys."""
    sections = "wal|receiver|driver|agent|security|dead_letters"
    files = r"(?:service|toml|py|md|key|pem|lock)"
    found = re.findall(rf"`({sections})\.([a-z_]+)(?= ?[=`(])", "\n".join((INDEX, *PAGES.values())))
    return {f"{section}.{key}" for section, key in found if not re.fullmatch(files, key)}


@pytest.mark.parametrize("named", sorted(settings_named()))
def test_every_setting_that_a_page_names_exists(named: str) -> None:
    section, key = named.split(".")
    fields = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    assert key in {field.name for field in msgspec.structs.fields(fields[section])}, named


def test_index_names_every_page_and_no_other() -> None:
    linked = re.findall(r"\]\(operations/([a-z-]+\.md)\)", INDEX)
    assert sorted(linked) == sorted(PAGES)
