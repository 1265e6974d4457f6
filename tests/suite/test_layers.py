"""The counts of the packages (docs/architecture/layers.md), and the contracts that keep imports going down."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.layout.layers import ALL, ROOT, Counts, acyclic, contracted, counts, files_of, tables

PYPROJECT = """
[tool.importlinter]
root_packages = ["counted_house", "counted_cellar"]

[[tool.importlinter.contracts]]
name = "the house"
type = "layers"
containers = ["counted_house"]
layers = ["roof", "rooms | stairs", "floor"]
exhaustive = true

[[tool.importlinter.contracts]]
name = "rooms are independent, but all know the hall"
type = "independence"
modules = ["counted_house.rooms.*"]
ignore_imports = ["counted_house.rooms.* -> counted_house.rooms.hall"]

[[tool.importlinter.contracts]]
name = "no circle of wine"
type = "acyclic_siblings"
ancestors = ["counted_cellar"]

[[tool.importlinter.contracts]]
name = "wine over barrels"
type = "layers"
containers = ["counted_cellar"]
layers = ["wine", "barrels"]

[[tool.importlinter.contracts]]
name = "no plumbing"
type = "forbidden"
source_modules = ["counted_house"]
forbidden_modules = ["plumbing"]
"""
#: two imports of `stairs` break the contract: up to `roof`, and sideways to a module below `rooms`
FILES = {
    "counted_house/__init__.py": "from counted_house import roof\n",  # of the package itself: in no count
    "counted_house/roof.py": "from counted_house.rooms import kitchen\nfrom counted_house.rooms.bath import tub\nimport json\n",
    "counted_house/stairs.py": "def climb():\n    from counted_house import roof\nimport counted_house.rooms.kitchen\n",
    "counted_house/floor.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from counted_house import rooms\n",
    "counted_house/rooms/__init__.py": "from counted_house.floor import wood\n",
    "counted_house/rooms/bath.py": "from counted_house.rooms import hall, kitchen\n",
    "counted_house/rooms/hall.py": "",
    "counted_house/rooms/kitchen.py": "from counted_house.rooms import bath\nimport counted_cellar.wine\n",
    "counted_cellar/__init__.py": "",
    "counted_cellar/wine.py": "from counted_cellar import barrels, corks\n",
    "counted_cellar/barrels.py": "from counted_cellar import corks, wine\n",  # up
    "counted_cellar/corks.py": "",  # in no layer
}


def _written(folder: Path) -> Path:
    (folder / "pyproject.toml").write_text(PYPROJECT)
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_modules_floors_and_arrows_of_a_small_package_are_counted(tmp_path: Path) -> None:
    assert counts(_written(tmp_path)) == {
        ALL: Counts(modules=2, floors=2, arrows=1, upward=None, circles=0),
        # stairs > roof > rooms > floor; the circle of `rooms` and `floor` is one of types
        "counted_house": Counts(modules=4, floors=4, arrows=4, upward=2, circles=1),
        "counted_house.rooms": Counts(modules=3, floors=2, arrows=3, upward=2, circles=1),
        "counted_cellar": Counts(modules=3, floors=2, arrows=4, upward=1, circles=1),
    }


def test_files_of_a_commit_are_counted_instead_of_changed_ones(tmp_path: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(_written(tmp_path)))
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Build a house")):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "counted_house" / "roof.py").write_text("")
    with files_of("HEAD", tmp_path) as folder:
        assert counts(folder)["counted_house"].arrows == 4
    with files_of(".", tmp_path) as folder:
        assert counts(folder)["counted_house"].arrows == 3


def test_table_has_the_old_packages_with_both_counts_and_then_the_new_ones() -> None:
    before = {"a": Counts(9, 5, 8, None, 1), "b": Counts(2, 1, 0, None, 0)}
    now = {"a": Counts(3, 2, 2, 0, 0), "a.c": Counts(6, 4, 5, 0, 0)}
    assert tables([before, now]).splitlines() == [
        "| package | modules | floors | arrows | upward | circles |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `a` | 9 → 3 | 5 → 2 | 8 → 2 | – → 0 | 1 → 0 |",
        "| `b` | 2 → – | 1 → – | 0 → – | – → – | 0 → – |",
        "",
        "| package | modules | floors | arrows | upward | circles |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `a.c` | 6 | 4 | 5 | 0 | 0 |",
    ]


def test_each_package_has_a_contract_that_holds_for_all_its_modules_and_no_circle() -> None:
    """A contract that leaves out modules, for folders to which commands are added, has one beside it that refuses circles."""
    contracts = contracted(ROOT)
    open_to_more = tuple(f"{package}." for package in acyclic(ROOT))
    for package, counted in counts(ROOT).items():
        assert package in contracts, f"{package}: pyproject.toml has no contract about its layers"
        assert contracts[package].exhaustive or package == ALL or package.startswith(open_to_more), package
        assert (counted.upward, counted.circles) == (0, 0), package
