"""The key ``data`` replaces wal.url, driver.journal and agent.blocks, and each of them has precedence over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import SettingsError
from forebay.settings.in_force import in_force
from forebay.settings.reading.load import from_values, load, mistakes

SHORT = {"stream": "flights", "kafka": {"topics": ["t"], "bootstrap.servers": "b:1"}}
FILE = 'stream = "flights"\n{}\n[kafka]\ntopics = ["t"]\n"bootstrap.servers" = "b:1"\n'


def written(folder: Path, line: str = "") -> Path:
    path = folder / "forebay.toml"
    path.write_text(FILE.format(line))
    return path


@pytest.mark.parametrize("data", ["/srv/forebay", "/srv/forebay/"])
def test_data_is_the_folder_of_wal_journal_and_blocks(data: str) -> None:
    settings = from_values({**SHORT, "data": data})
    assert (settings.wal.url, settings.driver.journal) == ("file:///srv/forebay/wal", "file:///srv/forebay/journal")
    assert settings.agent.blocks == "/srv/forebay/blocks"
    assert settings.spark.class_archive == "/srv/forebay/classes"
    assert settings.data == data
    assert settings.dead_letters.url is None  # records that can't be decoded still fail their batch


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("wal", "url", "s3://bucket/wal"),
        ("driver", "journal", "s3://bucket/journal"),
        ("agent", "blocks", "/disk/blocks"),
    ],
)
def test_explicit_key_has_precedence_over_data(section: str, name: str, value: str) -> None:
    derived = from_values({**SHORT, "data": "/srv"})
    settings = from_values({**SHORT, "data": "/srv", section: {name: value}})
    assert getattr(getattr(settings, section), name) == value
    for other, key in (("wal", "url"), ("driver", "journal"), ("agent", "blocks")):
        if other != section:
            assert getattr(getattr(settings, other), key) == getattr(getattr(derived, other), key)


def test_other_keys_of_a_section_leave_its_folder_in_data() -> None:
    settings = from_values({**SHORT, "data": "/srv", "driver": {"batch_interval": "5s"}})
    assert settings.driver.journal == "file:///srv/journal" and settings.driver.batch_interval == 5


def test_data_from_the_environment_overrides_the_file_and_an_empty_text_unsets_it(tmp_path: Path) -> None:
    assert load(written(tmp_path), {"FOREBAY__DATA": "/srv"}).wal.url == "file:///srv/wal"
    assert load(written(tmp_path, 'data = "/mnt"'), {"FOREBAY__DATA": "/srv"}).wal.url == "file:///srv/wal"
    with pytest.raises(SettingsError, match=r"the section \[wal\] is missing"):
        load(written(tmp_path, 'data = "/mnt"'), {"FOREBAY__DATA": ""})


def test_origin_of_a_folder_in_data_is_that_of_data(tmp_path: Path) -> None:
    path = written(tmp_path, 'data = "/mnt"')
    origins = {found.key: (found.value, found.origin) for found in in_force(load(path, {}))}
    assert origins["wal.url"] == ("file:///mnt/wal", str(path))
    origins = {found.key: (found.value, found.origin) for found in in_force(load(path, {"FOREBAY__DATA": "/srv"}))}
    assert origins["wal.url"] == ("file:///srv/wal", "FOREBAY__DATA")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("data", "write an absolute path of a folder"),
        ("file:///srv", "write an absolute path of a folder"),
        ("", "write an absolute path of a folder"),
        ("/srv/a#b", "without ?, # and unprintable characters"),
        ("/srv/a?b", "without ?, # and unprintable characters"),
        ("/srv/a\nb", "without ?, # and unprintable characters"),
        (7, 'write a text, as in "text"'),
    ],
)
def test_wrong_data_is_one_mistake(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^settings: data = .*{message.replace('?', '[?]')}"):
        from_values({**SHORT, "data": data})
    if data == "data":
        assert len(mistakes(written(tmp_path, f'data = "{data}"'), {})) == 1


def test_missing_folder_names_data_as_an_alternative(tmp_path: Path) -> None:
    found = [str(error) for error in mistakes(written(tmp_path), {})]
    assert len(found) == 3
    assert all('or set data = "/a/folder" above the first section' in message for message in found)
    with pytest.raises(SettingsError, match=r"the key wal\.url is missing .*; or set data"):
        from_values({**SHORT, "wal": {}, "driver": {"journal": "file:///j"}, "agent": {"blocks": "/b"}})
    with pytest.raises(SettingsError, match=r"the section \[kafka\] is missing$"):
        from_values({"stream": "flights", "data": "/srv"})
