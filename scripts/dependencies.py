"""What Forebay depends on, with releases and licences: packages of Python, jars, and files in the web page.

``requirements.lock`` and the lists of jars have names, releases and SHA-256. ``licenses.toml`` has the licences, and what each
package is for.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parents[1]
LICENSES = ROOT / "scripts" / "licenses.toml"
JAR_LISTS = (
    "forebay/kafka/embedded/kafka.jars.lock",
    "tests/support/stores/hadoop.jars.lock",
    "tests/support/spark/spark_kafka.jars.lock",
    "benchmarks/peers/connect.jars.lock",
    "benchmarks/peers/flink.jars.lock",
)
VENDORED = ("driver/web/static/vendor", "driver/web/reference/vendor")

#: runtime: every installation has it. extras: installed by an extra, or fetched by `forebay broker` and `forebay demo`.
#: development: for tests, benchmarks and documentation; no installation has it
Use = Literal["runtime", "extras", "development"]
USES: tuple[Use, ...] = get_args(Use)

_LOCKED = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)(?: ; ([^\\]*?))?(?: \\|$)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Dependency:
    """One release of a package, a jar or a file.

    ``purl``: its package URL. ``license``: an SPDX expression. ``sha256``: of every file that set-up accepts for it. ``marker``:
    the Pythons and systems for which set-up installs it; "": all.
    """

    name: str
    version: str
    purl: str
    use: Use
    license: str
    sha256: tuple[str, ...]
    marker: str = ""


class UnknownLicense(Exception):
    """``licenses.toml`` has no licence for a dependency."""


def licenses() -> dict[str, Any]:
    """Return the content of ``licenses.toml``."""
    content: dict[str, Any] = tomllib.loads(LICENSES.read_text(encoding="utf-8"))
    return content


def dependencies() -> Iterator[Dependency]:
    """Yield every dependency. Raises UnknownLicense."""
    known = licenses()
    yield from packages(known)
    for listed in JAR_LISTS:
        yield from jars(ROOT / listed, known["jars"])
    for folder in VENDORED:
        yield from _vendored(ROOT / folder / "vendor.json")


def packages(known: dict[str, Any]) -> Iterator[Dependency]:
    """Yield the packages of ``requirements.lock``: one for each release. A Python installs one release of a package."""
    for block in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text(encoding="utf-8")):
        found = _LOCKED.match(block)
        if found is None:
            continue
        name, version, marker = found.groups()
        use = next((use for use in USES if name in known[use]), None)
        if use is None:
            raise UnknownLicense(f"{name} {version}: scripts/licenses.toml has no licence for this package")
        yield Dependency(
            name,
            version,
            f"pkg:pypi/{name}@{version}",
            use,
            known[use][name],
            tuple(_HASH.findall(block)),
            marker or "",
        )


def jars(listed: Path, known: dict[str, str]) -> Iterator[Dependency]:
    """Yield the jars of a list. ``known``: organisation, or organisation/module → licence; the longest name counts."""
    use: Use = "extras" if listed.is_relative_to(ROOT / "forebay") else "development"
    for line in listed.read_text(encoding="utf-8").splitlines():
        sha256, path = line.split("  ")
        *organisation, module, version, file = path.split("/")
        name = f"{'.'.join(organisation)}/{module}"
        license_ = known.get(name) or known.get(".".join(organisation))
        if license_ is None:
            raise UnknownLicense(f"{path}: scripts/licenses.toml has no licence for this jar's organisation or module")
        classifier = file.removeprefix(f"{module}-{version}").removesuffix(".jar").removeprefix("-")
        more = f"?classifier={classifier}" if classifier else ""
        yield Dependency(name, version, f"pkg:maven/{name}@{version}{more}", use, license_, (sha256,))


def _vendored(listed: Path) -> Iterator[Dependency]:
    for file, entry in json.loads(listed.read_text(encoding="utf-8")).items():
        package, version = entry["package"], entry["version"]
        purl = f"pkg:npm/{package.replace('@', '%40')}@{version}#{file}"
        yield Dependency(f"{package}/{file}", version, purl, "runtime", entry["license"], (entry["sha256"],))
