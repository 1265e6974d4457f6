"""Writes the software bill of materials, ``dist/forebay-VERSION.cdx.json`` or the file that is named: CycloneDX 1.6 as JSON.

It lists the packages of ``requirements.lock``, the jars that are fetched, those in the installed pyspark, the files of the web
page, and the native library, with licence and SHA-256. The same tree, environment and commit give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from dependencies import ROOT, Dependency, Use, dependencies
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NATIVE = ROOT / "forebay" / "kafka" / "native" / "gather.so.1"
_SCOPES: dict[Use, ComponentScope] = {
    "runtime": ComponentScope.REQUIRED,
    "extras": ComponentScope.OPTIONAL,
    "development": ComponentScope.EXCLUDED,
}
_USES: tuple[Use, ...] = tuple(_SCOPES)
_JAR = re.compile(r"(?P<name>.+?)-(?P<version>[0-9].*)\.jar")


def bill() -> Bom:
    """Return the bill. Raises FileNotFoundError if the native library is not compiled."""
    bom = Bom()
    own = _own()
    bom.metadata.component = own
    # a jar of several lists counts once, with its widest use
    distinct = {one.purl: one for one in sorted(dependencies(), key=lambda one: _USES.index(one.use), reverse=True)}
    found = [(one, _component(one)) for one in distinct.values()]
    components = [component for _, component in found]
    for _, component in found:
        if component.name == "pyspark" and component.version == metadata.version("pyspark"):
            component.components = _jars_of_pyspark()
    native = _native()
    bom.components = [*components, native]
    runtime = [component for one, component in found if one.use == "runtime"]
    bom.register_dependency(own, [native, *runtime])
    by_name: dict[str, list[Component]] = {}
    for one, component in found:
        if one.purl.startswith("pkg:pypi/"):
            by_name.setdefault(one.name, []).append(component)
    for name, same in by_name.items():
        needed = [component for other in _required_by(name) for component in by_name.get(other, ())]
        for component in same:
            bom.register_dependency(component, needed)
    bom.metadata.timestamp = _committed()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(sorted(f"{c.purl} {c.version}" for c in components)))
    return bom


def _own() -> Component:
    return Component(
        name="forebay", version=metadata.version("forebay"), type=ComponentType.APPLICATION, bom_ref="forebay",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )  # fmt: skip


def _component(one: Dependency) -> Component:
    """Return the component of a dependency.

    A package has one SHA-256 for each file of its release, as CycloneDX wants it: at its reference, not at the component.
    """
    is_file = len(one.sha256) == 1 and not one.purl.startswith("pkg:pypi/")
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256) for sha256 in one.sha256]
    reference = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=XsUri(f"requirements.lock#{one.name}"), hashes=hashes,
        comment="SHA-256 of every file of the release that set-up accepts",
    )  # fmt: skip
    return Component(
        name=one.name,
        version=one.version,
        type=ComponentType.LIBRARY,
        purl=PackageURL.from_string(one.purl),
        bom_ref=one.purl,
        scope=_SCOPES[one.use],
        licenses=[LicenseFactory().make_from_string(one.license)],
        hashes=hashes if is_file else [],
        external_references=[] if is_file else [reference],
        properties=[Property(name="forebay:marker", value=one.marker)] if one.marker else [],
    )


def _native() -> Component:
    """Return the library that this tree compiles from ``gather.c``; its SHA-256 is that of this machine's compiler."""
    return Component(
        name="forebay/kafka/native/gather.so.1",
        version=metadata.version("forebay"),
        type=ComponentType.LIBRARY,
        bom_ref="native",
        scope=ComponentScope.REQUIRED,
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        hashes=[_sha256(_NATIVE.read_bytes())],
    )


def _jars_of_pyspark() -> Iterator[Component]:
    """Yield the jars in the installed pyspark, which its package contains."""
    spec = find_spec("pyspark")
    folders = spec.submodule_search_locations if spec is not None else None
    for jar in sorted(path for folder in folders or () for path in Path(folder, "jars").glob("*.jar")):
        found = _JAR.fullmatch(jar.name)
        name, version = (found["name"], found["version"]) if found else (jar.stem, "")
        group = _group(jar, name)
        yield Component(
            name=name, group=group, version=version, type=ComponentType.LIBRARY, bom_ref=f"pyspark/{jar.name}",
            purl=PackageURL("maven", group, name, version) if group and version else None,
            hashes=[_sha256(jar.read_bytes())],
        )  # fmt: skip


def _group(jar: Path, name: str) -> str | None:
    """Return the Maven organisation of the jar, as the jar itself names it; None if it does not."""
    with zipfile.ZipFile(jar) as file:
        places = [entry.split("/") for entry in file.namelist() if entry.endswith("/pom.properties")]
    return next((place[2] for place in places if len(place) == 5 and place[3] == name), None)


def _required_by(name: str) -> Iterator[str]:
    """Yield the packages that the installed package requires on this Python, without those of its extras."""
    try:
        requires = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # of another Python or system
        return
    for requirement in map(Requirement, requires):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def _sha256(data: bytes) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())


def _committed() -> datetime:
    """Return the time of SOURCE_DATE_EPOCH, else of the newest commit."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        command = ["git", "log", "-1", "--format=%ct"]
        seconds = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return datetime.fromtimestamp(int(seconds), timezone.utc)


def main() -> int:
    bom = bill()
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        print(f"the bill does not fit the schema of CycloneDX 1.6: {str(error.data)[:2000]}", file=sys.stderr)
        return 1
    own = bom.metadata.component
    assert own is not None
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist" / f"forebay-{own.version}.cdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", encoding="utf-8")
    print(f"{target}: {len(json.loads(text)['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
