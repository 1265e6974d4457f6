"""All mistakes of a configuration are found in one pass, each once, with a suggestion for a misspelt name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import SettingsError
from forebay.settings.load import load, mistakes
from forebay.settings.similar import did_you_mean

WRONG = """
stream = "flights"
[kafka]
topic = ["t"]
topics = ["a b"]
"bootstrap.servers" = "127.0.0.1:1"
[wal]
retentoin = "1d"
compression = "lz5"
[receiver]
block_interval = "200"
count = 0
[driver]
engine = "sprak"
url = "127.0.0.1:7080"
[agent]
blocks = "blocks"
[spark]
master = "local"
[storage.s4]
endpoint_url = "x"
[logging]
level = "info"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "forebay.toml"
    path.write_text(text)
    return path


def test_mistakes_lists_each_mistake_once(tmp_path: Path) -> None:
    path = written(tmp_path, WRONG)
    found = [str(error) for error in mistakes(path, {"FOREBAY__RECEIVER__MEMORY": "a lot"})]
    expected = [
        "unknown key kafka.topic; did you mean topics?",
        'kafka.topics = "a b"',
        "unknown key wal.retentoin; did you mean retention?",
        'wal.compression = "lz5": did you mean lz4?',
        "the key wal.url is missing",
        'receiver.block_interval = "200"',
        "receiver.count = 0: must be at least 1",
        'driver.engine = "sprak": did you mean spark?',
        'driver.url = "127.0.0.1:7080"',
        "the key driver.journal is missing",
        'agent.blocks = "blocks"',
        "unknown key 'master' in [spark]; did you mean spark.master?",
        "unknown section [storage.s4]; ",
        "unknown key logging; ",
        'FOREBAY__RECEIVER__MEMORY: receiver.memory = "a lot"',
    ]
    for words in expected:
        assert [words in sentence for sentence in found].count(True) == 1, (words, found)
    assert len(found) == len(expected), found
    assert all("\n" not in sentence for sentence in found)
    with pytest.raises(SettingsError) as first:
        load(path, {})
    assert str(first.value) in found


@pytest.mark.parametrize(
    "text", ["", "stream = 3", "wal = 1\nkafka = 2\ndriver = 3\nagent = 4", "x = [", "[kafka]\ntopics = []"]
)
def test_mistakes_ends_with_any_file(text: str, tmp_path: Path) -> None:
    found = [str(error) for error in mistakes(written(tmp_path, text), {})]
    assert found and len(set(found)) == len(found)


def test_valid_configuration_has_no_mistakes(tmp_path: Path) -> None:
    fine = (
        'stream = "s"\nkafka = {topics = ["t"], "bootstrap.servers" = "b"}\nwal = {url = "file:///w"}\n'
        'driver = {journal = "file:///j"}\nagent = {blocks = "/b"}\n'
    )
    assert mistakes(written(tmp_path, fine), {}) == []


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [("retentoin", ["retention", "url"], "did you mean retention? "), ("zzz", ["retention"], ""), ("", [], "")],
)
def test_similar_known_name_is_suggested(word: str, known: Any, meant: str) -> None:
    assert did_you_mean(word, known) == meant
