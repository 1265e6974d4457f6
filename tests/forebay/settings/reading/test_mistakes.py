"""All mistakes of a configuration are found in one pass, each once, with a suggestion for a misspelt name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import SettingsError
from forebay.settings import reference
from forebay.settings.reading.load import load, mistakes
from forebay.settings.reading.mistakes import MISTAKES_MAX
from forebay.settings.reading.rules import RULES, Rule
from forebay.settings.reading.similar import did_you_mean

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
    for message in expected:
        assert [message in sentence for sentence in found].count(True) == 1, (message, found)
    assert len(found) == len(expected), found
    assert all("\n" not in sentence for sentence in found)
    with pytest.raises(SettingsError) as first:
        load(path, {})
    assert str(first.value) in found


RIGHT = """
stream = "flights"
kafka = {topics = ["t"], "bootstrap.servers" = "b"}
wal = {url = "file:///w"}
driver = {journal = "file:///j"}
agent = {blocks = "/b"}
"""


def test_mistakes_of_file_environment_and_rules_are_listed_together(tmp_path: Path) -> None:
    path = written(tmp_path, RIGHT + '[receiver]\ninitial_rate = 5\nmax_rate = -1\n[security]\ncert_file = "/c.pem"\n')
    variables = {"FOREBAY__NOWHERE__KEY": "1", "FOREBAY__WAL": "1", "FOREBAY__KAFKA__STARTING_OFFSETS": "{x"}
    found = [str(error) for error in mistakes(path, variables)]
    expected = [
        "FOREBAY__NOWHERE__KEY: there is no section [nowhere]",
        "FOREBAY__WAL: names a section",
        "FOREBAY__KAFKA__STARTING_OFFSETS: the value is not valid TOML",
        "receiver.max_rate = -1: must be at least 0",
        "receiver.initial_rate = 5: it applies until backpressure learns a rate",
        "security.cert_file and security.key_file belong together",
        'driver.url = "http://127.0.0.1:7080": with security.cert_file',
        'agent.url = "http://127.0.0.1:7081": with security.cert_file',
    ]
    assert len(found) == len(expected), found
    for message in expected:
        assert [message in sentence for sentence in found].count(True) == 1, (message, found)


def test_rule_is_skipped_if_one_of_its_keys_is_wrong(tmp_path: Path) -> None:
    """A wrong key has its default in a rule, which would blame another key for it."""
    path = written(tmp_path, RIGHT + '[receiver]\nmemory = "1MB"\nblock_size = "much"\n')
    (error,) = mistakes(path, {})
    assert error.key == "receiver.block_size"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_names_existing_keys(rule: Rule) -> None:
    known = {key.path for keys in reference.keys_by_section().values() for key in keys.values()}
    assert set(RULES[rule]) <= known | {"kafka.bootstrap.servers"}


def test_number_of_listed_mistakes_is_limited(tmp_path: Path) -> None:
    path = written(tmp_path, RIGHT + "[receiver]\n" + "".join(f"key_{number} = 1\n" for number in range(200)))
    assert len(mistakes(path, {})) == MISTAKES_MAX


@pytest.mark.parametrize(
    "text", ["", "stream = 3", "wal = 1\nkafka = 2\ndriver = 3\nagent = 4", "x = [", "[kafka]\ntopics = []"]
)
def test_mistakes_ends_with_any_file(text: str, tmp_path: Path) -> None:
    found = [str(error) for error in mistakes(written(tmp_path, text), {})]
    assert found and len(set(found)) == len(found)


def test_valid_configuration_has_no_mistakes(tmp_path: Path) -> None:
    assert mistakes(written(tmp_path, RIGHT), {}) == []


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [("retentoin", ["retention", "url"], "did you mean retention? "), ("zzz", ["retention"], ""), ("", [], "")],
)
def test_similar_known_name_is_suggested(word: str, known: Any, meant: str) -> None:
    assert did_you_mean(word, known) == meant
