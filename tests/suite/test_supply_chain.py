"""The list of components, and the check of licences."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

_ROOT = Path(__file__).parents[2]
_SCRIPTS = _ROOT / "scripts"


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("sbom") / "bill.json"
    subprocess.run([sys.executable, str(_SCRIPTS / "sbom.py"), str(file)], check=True, capture_output=True)
    return file.read_text(encoding="utf-8")


def components(bill: str) -> dict[str, Any]:
    return {one["bom-ref"]: one for one in json.loads(bill)["components"]}


def test_bill_fits_the_schema_of_cyclonedx_and_another_one_does_not(bill: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(bill) is None
    assert validator.validate_str('{"bomFormat": "Cyclone", "specVersion": "1.6"}') is not None


def test_bill_has_every_locked_package_jar_and_the_native_library_with_hash_and_licence(bill: str) -> None:
    found = components(bill)
    for line in (_ROOT / "requirements.lock").read_text().splitlines():
        name, equals, rest = line.partition("==")
        if equals:
            assert f"pkg:pypi/{name}@{rest.split()[0]}" in found, line
    for line in (_ROOT / "forebay" / "kafka" / "embedded" / "kafka.jars.lock").read_text().splitlines():
        sha256, path = line.split("  ")
        module, version = path.split("/")[-3:-1]
        (jar,) = (one for one in found.values() if one["name"].endswith(f"/{module}") and one["version"] == version)
        assert jar["hashes"] == [{"alg": "SHA-256", "content": sha256}]
    native = _ROOT / "forebay" / "kafka" / "native" / "gather.so.1"
    assert found["native"]["hashes"][0]["content"] == hashlib.sha256(native.read_bytes()).hexdigest()
    assert all(one["licenses"] for one in found.values())
    (spark,) = (one for one in found.values() if one["name"] == "pyspark" and one.get("components"))
    assert any(jar["name"] == "spark-core_2.13" for jar in spark["components"])
    (wheel,) = found[next(ref for ref in found if ref.startswith("pkg:pypi/msgspec@"))]["externalReferences"]
    assert len(wheel["hashes"]) > 1


def test_bill_names_what_an_installation_needs_and_what_only_tests_need(bill: str) -> None:
    scopes = {one["name"]: one["scope"] for one in components(bill).values()}
    assert scopes["msgspec"] == scopes["pyarrow"] == "required"
    assert scopes["psycopg"] == "optional"
    assert scopes["pytest"] == "excluded"
    requires = {one["ref"]: one.get("dependsOn", []) for one in json.loads(bill)["dependencies"]}
    assert any(ref.startswith("pkg:pypi/s3fs@") for ref in requires["forebay"])
    (s3fs,) = (ref for ref in requires if ref.startswith("pkg:pypi/s3fs@"))
    assert any(ref.startswith("pkg:pypi/aiobotocore@") for ref in requires[s3fs])


def test_check_of_licences_finds_what_is_unknown_not_allowed_or_stated_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(_SCRIPTS))
    dependencies, licenses = map(importlib.import_module, ("dependencies", "licenses"))

    text = dependencies.LICENSES.read_text(encoding="utf-8")
    planted = tmp_path / "licenses.toml"
    monkeypatch.setattr(dependencies, "LICENSES", planted)
    for line, message in (
        ('msgspec = "BSD-3-Clause"\n', "no licence for this package"),
        ('"org.slf4j" = "MIT"\n', "no licence for this jar"),
    ):
        planted.write_text(text.replace(line, ""), encoding="utf-8")
        assert line in text and [message in found for found in licenses.problems()] == [True], line
    moved = text.replace('urllib3 = "MIT"\n', "").replace("[extras]\n", '[extras]\nurllib3 = "MIT"\n')
    for line, replacement in (
        ('msgspec = "BSD-3-Clause"', 'msgspec = "GPL-3.0-only"'),
        ('cachetools = "MIT"', 'cachetools = "Apache-2.0"'),
        ('"io.netty" = "Apache-2.0"', '"io.netty" = "MIT"'),
        ('"org.slf4j" = "MIT"', '"org.slf4j" = "AGPL-3.0-only"'),
    ):
        assert line in moved
        moved = moved.replace(line, replacement)
    planted.write_text(moved, encoding="utf-8")
    found = "\n".join(licenses.problems())
    for message in (
        "its licence GPL-3.0-only is not allowed for runtime",
        "states BSD-3-Clause, but scripts/licenses.toml says GPL-3.0-only",
        "states MIT, but scripts/licenses.toml says Apache-2.0",
        "its licence AGPL-3.0-only is not allowed for extras",
        "urllib3: every installation has it",
    ):
        assert message in found, message
    if any((dependencies.ROOT / ".cache").glob("*/libs/netty-common-*.jar")):
        assert "its jar states Apache-2.0, but scripts/licenses.toml says MIT" in found


def test_an_expression_is_allowed_by_one_of_each_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_SCRIPTS))
    is_allowed = importlib.import_module("licenses").is_allowed

    allowed = frozenset({"MIT", "Apache-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"})
    for expression, expected in (
        ("MIT", True), ("GPL-2.0-only", False), ("GPL-3.0-only OR MIT", True), ("MIT AND Apache-2.0", True),
        ("MIT AND GPL-3.0-only", False), ("MPL-2.0 AND (Apache-2.0 OR MIT)", False), ("MIT AND (GPL-3.0-only OR MIT)", True),
        ("EPL-2.0 OR GPL-2.0-only WITH Classpath-exception-2.0", True),
    ):  # fmt: skip
        assert is_allowed(expression, allowed) is expected, expression


def test_each_exception_from_a_security_rule_has_its_reason_behind_it() -> None:
    names = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    found = [
        match
        for name in names
        for match in re.findall(r"# noqa:[^\n]*\bS\d+[^\n]*", (_ROOT / name).read_text(encoding="utf-8"))
        if not name.endswith("test_supply_chain.py")
    ]
    assert found
    assert [text for text in found if not re.fullmatch(r"# noqa: S\d+(  | - )\S.*", text)] == []
