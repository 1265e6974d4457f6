"""Copies that are a stream's only data survive a power loss, with their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.state.rows import block, filler
from wal.blocks.local_writing import local_frame, write_local_frame


def test_durable_copy_syncs_its_bytes_and_the_names_of_all_folders_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: a power loss soon after the first start must not take the block directory with all copies."""
    real = os.fsync
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    directory = tmp_path / "var" / "blocks"
    meta, payload = block({("a", 0): filler(5)})
    path = write_local_frame(directory, meta, local_frame(meta, payload), durable=True)
    folders = [path.parent, directory, directory.parent, tmp_path]
    assert {str(folder) for folder in folders} <= set(synced)
    assert any(name.startswith(str(path.parent / ".")) for name in synced), "the file itself, before its rename"
