"""How much memory a process can still take."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.process import memory


@pytest.mark.parametrize(
    ("limits", "free"),
    [
        ({}, 8_000 * 1024),
        ({"a": ("max", 10)}, 8_000 * 1024),
        ({"a": ("5000000", 2_000_000)}, 3_000_000 + 700),
        ({"a": ("5000000", 2_000_000), "a/b": ("1000000", 999_000)}, 1_000 + 700),
        ({"a/b": ("1000", 5_000_000)}, 0),
    ],
)
def test_free_memory_is_that_of_the_narrowest_group(
    limits: dict[str, tuple[str, int]], free: int, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       9000 kB\nMemAvailable:       8000 kB\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    (tmp_path / "groups" / "a" / "b").mkdir(parents=True)
    for name, (limit, used) in limits.items():
        group = tmp_path / "groups" / name
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text("anon 5\ninactive_file 500\nactive_file 200\nfile 9\n")
    assert memory.free_bytes(tmp_path / "meminfo", tmp_path / "own", tmp_path / "groups") == free
