"""Checks the licences of all dependencies, and writes docs/licenses.md.

``--check``: write nothing; print what is wrong, and exit with 1 if anything is. Installed packages and fetched jars are compared
with ``licenses.toml``; those that are not here can't be.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dependencies import ROOT, USES, Dependency, UnknownLicense, Use, dependencies, licenses
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = ROOT / "docs" / "licenses.md"
_CACHE = ROOT / ".cache"

#: what packages say without an SPDX expression, in small letters → the licences that it may mean
_CLAIMS: dict[str, frozenset[str]] = {
    "apache 2.0": frozenset({"Apache-2.0"}),
    "apache license, version 2.0": frozenset({"Apache-2.0"}),
    "apache software license": frozenset({"Apache-2.0"}),
    "apache-2.0": frozenset({"Apache-2.0"}),
    "bsd license": frozenset({"BSD-2-Clause", "BSD-3-Clause"}),
    "bsd 2-clause license": frozenset({"BSD-2-Clause"}),
    "bsd 3-clause license": frozenset({"BSD-3-Clause"}),
    "bsd-2-clause": frozenset({"BSD-2-Clause"}),
    "bsd-3-clause": frozenset({"BSD-3-Clause"}),
    "gnu general public license v2 (gplv2)": frozenset({"GPL-2.0-only WITH Classpath-exception-2.0"}),
    "gnu lesser general public license v3 (lgplv3)": frozenset({"LGPL-3.0-only"}),
    "isc": frozenset({"ISC"}),
    "isc license (iscl)": frozenset({"ISC"}),
    "mit": frozenset({"MIT"}),
    "mit license": frozenset({"MIT"}),
    "mozilla public license 2.0 (mpl 2.0)": frozenset({"MPL-2.0"}),
    "python software foundation license": frozenset({"PSF-2.0"}),
}
#: parts of what a jar's manifest or POM says → the licence
_JAR_CLAIMS = {
    "apache": "Apache-2.0", "edl-v10": "BSD-3-Clause", "bsd-3-clause": "BSD-3-Clause", "bsd-2-clause": "BSD-2-Clause",
    "mit": "MIT", "epl-2.0": "EPL-2.0", "classpath": "GPL-2.0-only WITH Classpath-exception-2.0",
}  # fmt: skip

_INTRODUCTION = """# Licences of the dependencies

<!-- scripts/licenses.py writes this page from requirements.lock, the lists of jars and scripts/licenses.toml. -->

Forebay is under [Apache-2.0](../LICENSE). This page lists what it depends on, by licence. `make licenses` and `make check` check
that each licence is one that its use allows, and that the installed package or the fetched jar states the same licence.
`make sbom` writes the same list with releases and SHA-256, as CycloneDX.

The project's own wheel contains none of these packages and jars, except the files of the web page, which are named with their npm
packages. Their licences are beside them. Libraries inside binary wheels have licences of their own, which these wheels contain:
for example librdkafka (BSD-2-Clause) in confluent-kafka, and the jars in pyspark.

"""
_TITLES: dict[Use, str] = {
    "runtime": "What every installation has",
    "extras": "What extras install, and what `forebay broker` and `forebay demo` fetch",
    "development": "What only tests, benchmarks and documentation use",
}


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Return whether one licence of each OR, and all of each AND, are in ``allowed``."""
    return all(any(one.strip(" ()") in allowed for one in part.split(" OR ")) for part in expression.split(" AND "))


def refused(found: list[Dependency], known: dict[str, Any]) -> Iterator[str]:
    """Yield the dependencies whose licence their use does not allow."""
    everywhere = frozenset(known["allowed"]["all"])
    for one in found:
        if not is_allowed(one.license, everywhere | frozenset(known["allowed"].get(one.use, ()))):
            yield f"{one.name} {one.version}: its licence {one.license} is not allowed for {one.use} (scripts/licenses.toml)"


def other_claims(found: list[Dependency]) -> Iterator[str]:
    """Yield the packages that state another licence, or are used for more, than ``licenses.toml`` says."""
    locked = {(canonicalize_name(one.name), one.version): one for one in found if one.purl.startswith("pkg:pypi/")}
    needed = _installed_by("")
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"])
        one = locked.get((name, distribution.version))
        if one is None:
            continue
        if name in needed and one.use != "runtime":
            yield f"{name}: every installation has it, but scripts/licenses.toml lists it under [{one.use}]"
        if wrong := _other_claim(distribution, one.license):
            yield f"{name} {one.version}: states {wrong}, but scripts/licenses.toml says {one.license}"


def _other_claim(distribution: metadata.Distribution, expected: str) -> str | None:
    """Return what the package states if ``expected`` is not that; None if it agrees or states nothing that has one meaning."""
    stated = distribution.metadata
    if "License-Expression" in stated:
        expression = stated["License-Expression"]
        return None if expression == expected else expression
    written = [(stated.get_all("License") or [""])[0].partition("\n")[0]]
    written += [
        line.rpartition(" :: ")[2] for line in stated.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    claims = [_CLAIMS[text] for text in map(str.lower, map(str.strip, written)) if text in _CLAIMS]
    alternatives = set(re.split(r" (?:AND|OR) ", expected))
    return None if not claims or any(alternatives & claim for claim in claims) else ", ".join(filter(None, written))


def _installed_by(extra: str) -> set[str]:
    """Return the packages that an installation with ``extra`` ("": none) has, on this Python and system."""
    found: set[str] = set()
    waiting = [("forebay", extra)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another Python or system
            continue
        found.add(name)
        for requirement in map(Requirement, requires):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                more = [(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)]
                waiting += [one for one in more if one not in seen]
                seen.update(more)
    return found


def other_jar_claims(found: list[Dependency]) -> Iterator[str]:
    """Yield the fetched jars whose manifest or POM names only other licences."""
    fetched = {path.name: path for path in _CACHE.glob("*/libs/*.jar")}
    by_purl = {one.purl: one for one in found if one.purl.startswith("pkg:maven/")}
    for one in by_purl.values():
        module = one.name.rpartition("/")[2]
        path = fetched.get(f"{module}-{one.version}.jar")
        claims = {name for part, name in _JAR_CLAIMS.items() if path is not None and part in _jar_text(path)}
        if claims and not claims & set(one.license.split(" OR ")):
            stated = ", ".join(sorted(claims))
            yield f"{one.name} {one.version}: its jar states {stated}, but scripts/licenses.toml says {one.license}"


@cache
def _jar_text(path: Path) -> str:
    """Return what the jar's manifest says of its licence, in small letters, without line breaks; "" if nothing."""
    with zipfile.ZipFile(path) as jar:
        try:
            manifest = jar.read("META-INF/MANIFEST.MF").decode("utf-8", "replace")
        except KeyError:
            return ""
    found = re.search(r"^Bundle-License: (.*)$", re.sub(r"\r?\n ", "", manifest), re.MULTILINE)
    return found[1].lower() if found else ""


def page(found: list[Dependency]) -> str:
    """Return docs/licenses.md."""
    parts = [_INTRODUCTION]
    for use in USES:
        names: dict[str, set[str]] = defaultdict(set)
        for one in found:
            if one.use == use:
                names[one.license].add(one.name)
        parts.append(f"## {_TITLES[use]}\n\n")
        parts += [f"- **{license_}**: {', '.join(sorted(names[license_]))}\n" for license_ in sorted(names)]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def problems() -> list[str]:
    """Return all that is wrong with the licences and their page."""
    try:
        found = list(dependencies())
    except UnknownLicense as error:
        return [str(error)]
    wrong = [*refused(found, licenses()), *other_claims(found), *other_jar_claims(found)]
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(found):
        wrong.append("docs/licenses.md is not current: run scripts/licenses.py")
    return wrong


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(list(dependencies())), encoding="utf-8")
    wrong = problems()
    print("\n".join(wrong) or f"{len(list(dependencies()))} packages, jars and files: every licence is allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
