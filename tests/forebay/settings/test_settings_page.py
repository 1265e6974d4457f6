"""docs/SETTINGS.md and one-machine.toml compared with the settings, without the script that writes them."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from forebay.settings import reference
from forebay.settings.reading.conversion import fitted
from forebay.settings.reading.load import from_values, load
from forebay.settings.schema import Section, Settings
from forebay.settings.toml_text import toml_text
from scripts import settings_page
from tests.forebay.settings.test_settings import good_values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parents[3]
ROWS = {
    cells[0].strip("`"): tuple(cells)
    for line in (ROOT / "docs" / "SETTINGS.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("| ").split(" | ")]]
}


def keys() -> list[str]:
    """Return all keys of the settings, without ``options``, which holds the pass-through keys."""
    found = []
    for section, hint in get_type_hints(Settings).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            found += [f"{section}.{name}" for name in hint.__struct_fields__ if name != "options"]
        else:
            found.append(section)
    return found


def value(settings: Settings, key: str) -> Any:
    found: Any = settings
    for name in key.split("."):
        found = getattr(found, name)
    return found


def given(key: str, toml: str) -> Settings:
    """Return settings in which ``key`` is set to ``toml``."""
    values = good_values()
    section, _, name = key.rpartition(".")
    own = values.setdefault(section, {}) if section else values
    written = tomllib.loads(f"x = {toml}")["x"]
    if key == "kafka.topics":
        own["pattern"] = "^t"
    own[name] = written
    return from_values(values)


def test_page_has_one_row_for_each_key() -> None:
    assert sorted(ROWS) == sorted(keys())


@pytest.mark.parametrize("key", keys())
def test_page_shows_default_and_meaning_of_each_key(key: str) -> None:
    _, kind, default, meaning = ROWS[key]
    assert kind and re.search(r"\w{3}", meaning)
    section, _, name = key.rpartition(".")
    hints = get_type_hints(Settings)
    field = next(f for f in msgspec.structs.fields(hints[section] if section else Settings) if f.name == name)
    if default == "required":
        assert field.required
    elif default == "unset":
        assert field.default is None
    else:
        assert default == f"`{default.strip('`')}`"
        as_is = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        assert value(given(key, default.strip("`")), key) == as_is


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('`"7d"`', '`"1d"`'),
        ("| `driver.unreadable_retry` |", "| `driver.unreadable` |"),
        ("Name of the stream", "Words"),
    ],
)
def test_check_reports_outdated_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    assert settings_page.problems() == []
    changed = tmp_path / "SETTINGS.md"
    changed.write_text(settings_page.page().replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(settings_page, "PAGE", changed)
    assert len(settings_page.problems()) == 1


def test_check_reports_outdated_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "one-machine.toml"
    changed.write_text(settings_page.example().replace("#poll_records = 20000", "#poll_records = 30000", 1))
    monkeypatch.setattr(settings_page, "EXAMPLE", changed)
    assert [problem.split()[0] for problem in settings_page.problems()] == ["one-machine.toml"]


@pytest.mark.parametrize("missing", ["description", "example"])
def test_check_reports_key_without_description_or_example(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    keys = reference.keys_by_section()
    whole = keys["wal"]["key_file"]
    key = (
        dataclasses.replace(whole, description="")
        if missing == "description"
        else dataclasses.replace(whole, example=None)
    )
    changed = {**keys, "wal": {**keys["wal"], "key_file": key}}
    monkeypatch.setattr(reference, "keys_by_section", lambda: changed)
    (problem,) = settings_page.problems()
    assert problem.startswith("forebay/settings/schema: ") and problem.endswith("wal.key_file")


#: defaults on other pages: in parentheses after the key, or in a column of a table
IN_PROSE = re.compile(r"`([a-z_]+\.[a-z_]+)`\s\((\d+) ?(ms|s|minutes|h|days|KB|MB|GB|[KM]iB)\b")
IN_TABLE = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| `([^`]+)` \|", re.MULTILINE)
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "SETTINGS.md")]


def defaults_named() -> list[tuple[str, str, str]]:
    """Return page, key and default (as in TOML) of each default on other pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [
            (page.name, key, f'"{number}{unit[0] if unit in ("minutes", "days") else unit}"')
            for key, number, unit in IN_PROSE.findall(text)
        ]
        table = text.partition("| limit | default |")[2].partition("\n\n")[0]
        found += [(page.name, key, default) for key, default in IN_TABLE.findall(table)]
    return [(page, key, default) for page, key, default in found if key in keys()]


def test_search_finds_defaults_on_other_pages() -> None:
    assert len(defaults_named()) >= 14


@pytest.mark.parametrize(("page", "key", "default"), defaults_named())
def test_default_on_other_page_is_the_default(page: str, key: str, default: str) -> None:
    defaults = from_values(good_values())
    assert value(given(key, default), key) == value(defaults, key), f"docs/{page} says {key} = {default}"


def test_readme_names_default_retention() -> None:
    wal = from_values(good_values()).wal
    limits = (
        f"{wal.retention / 86_400:.0f} days, {wal.retention_size / 10**9:.0f} GB or {wal.retention_blocks:,} blocks"
    )
    assert f"stay up to {limits}," in (ROOT / "README.md").read_text(encoding="utf-8")


#: keys that the example sets for its machine
OWN = {
    "stream", "kafka.topics", "wal.url", "receiver.count", "driver.journal", "driver.job", "agent.blocks", "dead_letters.url",
}  # fmt: skip
ONE_MACHINE = ROOT / "deploy" / "examples" / "one-machine.toml"


def test_one_machine_example_sets_only_values_of_its_machine() -> None:
    example, defaults = load(ONE_MACHINE, {}), from_values(good_values())
    differing = {key for key in keys() if value(example, key) != value(defaults, key)}
    assert differing == OWN


def test_one_machine_example_shows_default_of_each_other_key() -> None:
    text = re.sub(r"^#(?=[a-z_]+ = )", "", ONE_MACHINE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    written = tomllib.loads(text)
    shown = {f"{s}.{n}" for s, own in written.items() if isinstance(own, dict) for n in own if "." not in n} | {
        name for name, own in written.items() if not isinstance(own, dict) or not own
    }
    assert shown == set(keys())
    defaults = from_values(good_values())
    for key in sorted(shown - OWN):
        section, _, name = key.rpartition(".")
        own = written[section][name] if section else written[name]
        if value(defaults, key) is None:
            fitted(reference.keys_by_section()[section][name], own)  # raises an error if the example is refused
        else:
            assert value(given(key, toml_text(own)), key) == value(defaults, key), key
