"""Counts the modules, floors and imports of each package: ``python -m tests.support.layout.layers [COMMIT [COMMIT]]``.

Without an argument it reads the files of this checkout, with a commit those of the commit. With two it prints
``before → after``; ``.`` means this checkout. The columns are those of docs/architecture/layers.md:

- modules: modules and subpackages directly in the package. Imports of a subpackage's modules count as the subpackage's.
- floors: the number of modules on the longest chain of imports inside the package.
- arrows: the number of pairs in which one module imports the other.
- upward: how many arrows the package's contract in ``pyproject.toml`` refuses: those that lead up, or sideways, in its order,
  or that are not among the named imports between modules that are otherwise independent; ``–`` without a contract.
- circles: groups of modules that import each other, also if only for types. The other columns leave out imports for types, as
  the contracts do.

A package with one module is left out. The row ``(all)`` is about the packages of the first level.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parents[3]
ALL = "(all)"
CHECKOUT = "."

#: the imports inside one package: by module, the modules that it imports
Arrows = Mapping[str, Set[str]]


class Layers(NamedTuple):
    """A contract about one package, from the top down. Modules of one layer must not import each other.

    If it is not ``exhaustive``, it allows all imports of the modules that it does not name.
    """

    layers: tuple[frozenset[str], ...]
    exhaustive: bool

    def upward(self, arrows: Arrows) -> int:
        floor = {name: at for at, layer in enumerate(self.layers) for name in layer}
        return sum(
            floor[other] <= floor[module]
            for module, others in arrows.items()
            for other in others
            if self.exhaustive or {module, other} <= floor.keys()
        )


class Independent(NamedTuple):
    """A contract about one package: its modules do not import each other, except as ``allowed`` says: (importer, imported).

    ``*`` is any module of the package.
    """

    allowed: frozenset[tuple[str, str]]

    @property
    def exhaustive(self) -> bool:
        return True

    def upward(self, arrows: Arrows) -> int:
        return sum(
            self.allowed.isdisjoint({(module, other), ("*", other), (module, "*")})
            for module, others in arrows.items()
            for other in others
        )


class Counts(NamedTuple):
    modules: int
    floors: int
    arrows: int
    upward: int | None
    circles: int


_ABSENT = (None,) * len(Counts._fields)


def counts(folder: Path) -> dict[str, Counts]:
    """Return the counts of each package below ``folder``, which has the ``pyproject.toml`` that names the packages."""
    settings = _settings(folder)
    contracts = contracted(folder)
    run = _arrows(_graph(folder, settings["root_packages"], types=False))
    typed = _arrows(_graph(folder, settings["root_packages"], types=True))
    return {
        package: Counts(
            len(arrows),
            _floors(arrows),
            sum(map(len, arrows.values())),
            contracts[package].upward(arrows) if package in contracts else None,
            len(_circles(typed[package])),
        )
        for package, arrows in sorted(run.items())
        if len(arrows) > 1
    }


def contracted(folder: Path) -> dict[str, Layers | Independent]:
    """Return the contracts about the imports inside a package, by package."""
    independent = {
        package.removesuffix(".*"): Independent(
            frozenset(
                (importer.removeprefix(package[:-1]), imported.removeprefix(package[:-1]))
                for importer, _, imported in (line.partition(" -> ") for line in contract.get("ignore_imports", []))
            )
        )
        for contract in _settings(folder)["contracts"]
        if contract["type"] == "independence"
        for package in contract["modules"]
        if package.endswith(".*")
    }
    return independent | {
        container: Layers(
            tuple(frozenset(part.strip() for part in layer.split("|")) for layer in contract["layers"]),
            contract.get("exhaustive", False),
        )
        for contract in _settings(folder)["contracts"]
        if contract["type"] == "layers"
        for container in contract.get("containers", [ALL])
    }


def acyclic(folder: Path) -> set[str]:
    """Return the packages in which, and below which, a contract refuses circles."""
    contracts = _settings(folder)["contracts"]
    return {one for contract in contracts if contract["type"] == "acyclic_siblings" for one in contract["ancestors"]}


@contextmanager
def files_of(commit: str, repository: Path = ROOT) -> Iterator[Path]:
    """Give a folder with the files of ``commit``; of ``CHECKOUT``, the repository's own folder."""
    if commit == CHECKOUT:
        yield repository
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=repository, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def _settings(folder: Path) -> dict[str, Any]:
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["tool"]["importlinter"]
    return found


def _graph(folder: Path, packages: list[str], *, types: bool) -> grimp.ImportGraph:
    sys.path.insert(0, str(folder))
    try:
        return grimp.build_graph(*packages, exclude_type_checking_imports=not types, cache_dir=None)
    finally:
        sys.path.remove(str(folder))


def _arrows(graph: grimp.ImportGraph) -> dict[str, Arrows]:
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in graph.modules:
        package, _, name = module.rpartition(".")
        _ = found[package or ALL][name]
        for other in graph.find_modules_directly_imported_by(module):
            here, there = module.split("."), other.split(".")
            shared = next((at for at, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), None)
            if shared is not None:  # None: a package and a module below it
                found[".".join(here[:shared]) or ALL][here[shared]].add(there[shared])
    return {package: dict(arrows) for package, arrows in found.items()}


def _reached(arrows: Arrows) -> dict[str, set[str]]:
    """Return, for each module, all modules that it imports directly or over others."""
    reached: dict[str, set[str]] = {}
    for module in arrows:
        seen, pending = set[str](), [module]
        while pending:
            new = arrows[pending.pop()] - seen
            seen |= new
            pending += new
        reached[module] = seen
    return reached


def _circles(arrows: Arrows) -> set[frozenset[str]]:
    reached = _reached(arrows)
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in arrows
        if module in reached[module]
    }


def _floors(arrows: Arrows) -> int:
    """Return the length of the longest chain. Modules that import each other in a circle are on one floor."""
    reached = _reached(arrows)
    floor: dict[str, int] = {}
    for module in sorted(arrows, key=lambda name: len(reached[name] | {name})):  # first what others import
        floor[module] = 1 + max((floor[other] for other in arrows[module] if module not in reached[other]), default=0)
    return max(floor.values())


def tables(read: Sequence[Mapping[str, Counts]]) -> str:
    """Return a table in Markdown of the first packages, with all counts, and one of the packages that only the last ones have."""
    old = _table(read[0], read)
    new = read[-1].keys() - read[0].keys()
    return f"{old}\n\n{_table(sorted(new), read[-1:])}" if new else old


def _table(packages: Iterable[str], read: Sequence[Mapping[str, Counts]]) -> str:
    rows = [["package", *Counts._fields], ["---"] * (1 + len(Counts._fields))]
    for package in packages:
        columns = zip(*(counted.get(package, _ABSENT) for counted in read), strict=True)
        rows.append(
            [f"`{package}`", *(" → ".join("–" if value is None else str(value) for value in each) for each in columns)]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(commits: list[str]) -> None:
    read = []
    for commit in commits or [CHECKOUT]:
        with files_of(commit) as folder:
            read.append(counts(folder))
    print(tables(read))


if __name__ == "__main__":
    main(sys.argv[1:])
