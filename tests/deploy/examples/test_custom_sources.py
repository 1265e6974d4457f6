"""Configuration and checks of a custom source; the example of docs/SOURCES.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.commands.running.services import children
from deploy.examples.custom_sources.sources import CHUNK_BYTES, Tail
from deploy.main import main
from forebay.model.errors import SettingsError
from forebay.settings.reading.load import from_values, load
from forebay.sources.kind import source_kind
from forebay.sources.receiving import OffsetGone, RetryLater
from tests.support.run.ports import free_port

_EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_sources"


def written(tmp_path: Path, **changes: str) -> Path:
    """The example, in a folder of the test."""
    text = (_EXAMPLE / "forebay.toml").read_text()
    changes = {
        "/var/lib/forebay": str(tmp_path),
        "/var/log/lines": str(tmp_path / "lines"),
        "[driver]\n": f'[driver]\nurl = "http://127.0.0.1:{free_port()}"\n',
        **changes,
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    for name in ("sources.py", "jobs.py"):
        (tmp_path / name).write_text((_EXAMPLE / name).read_text())
    path = tmp_path / "forebay.toml"
    path.write_text(text)
    return path


def validated(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    code = main(["--config", str(path), "validate", "--json"])
    return code, {c["name"]: (c["outcome"], c["detail"]) for c in json.loads(capsys.readouterr().out)}


def test_the_example_needs_no_kafka_and_its_receivers_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = written(tmp_path, **{'"sources:Tail"': '"deploy.examples.custom_sources.sources:Tail"'})
    code, checks = validated(path, capsys)
    assert code == 3 and checks["partitions"][0] == "unreachable", "the folder is not there yet, which is waited for"
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "clock.log").write_text("12:00\n")
    code, checks = validated(path, capsys)
    assert code == 0 and checks["partitions"] == ("fine", "clock.log/0") and "broker" not in checks
    settings = load(path)
    assert [child.name for child in children(settings, path, range(1, 3))][2:] == ["receiver-1", "receiver-2"]
    assert [child.command[-1] for child in children(settings, path, range(1, 3))][2:] == ["lines-r0", "lines-r1"]
    assert source_kind(settings).kafka_access() is None, "no task reads from Kafka"
    wrong = written(tmp_path, **{'"sources:Tail"': '"deploy.examples.custom_sources.sources:Nothing"'})
    code, checks = validated(wrong, capsys)
    assert code == 2 and checks["source"][0] == "wrong" and "has no class 'Nothing'" in checks["source"][1]
    assert main(["--config", str(path), "receiver", "--id", "r1"]) == 2
    assert "allowed ids are lines-r0 to lines-r1" in capsys.readouterr().err
    for command in (["lag"], ["offsets", "import"]):
        assert main(["--config", str(path), *command]) == 2, command


@pytest.mark.parametrize(
    ("kafka", "receiver", "message"),
    [
        (None, {"source": "sources"}, 'receiver.source = "sources": write "kafka", or module:Class'),
        ({"topics": ["t"]}, {"source": "m:C"}, 'kafka.topics: receiver.source = "m:C" reads no topics'),
        ({"pattern": "^t"}, {"source": "m:C"}, 'kafka.pattern: receiver.source = "m:C" reads no topics'),
        ({"starting_offsets": "committed"}, {"source": "m:C"}, 'allowed are "earliest" and "latest"'),
        (None, {"source": "m:C", "count": 1001}, "receiver.count = 1001"),
        (None, {}, r"the section \[kafka\] is missing"),
        (
            {"topics": ["t"], "bootstrap.servers": "b:1"},
            {"source_options": {"a": 1}},
            "receiver.source_options are arguments of a custom source",
        ),
        (
            None,
            {"source": "m:C", "letters": "bad"},
            'dead_letters.topic = "bad": name its brokers by kafka."bootstrap.servers"',
        ),
    ],
)
def test_settings_that_do_not_fit_a_source_are_refused(
    kafka: dict[str, object] | None, receiver: dict[str, object], message: str
) -> None:
    values = {
        "stream": "s",
        "wal": {"url": "file:///w"},
        "driver": {"journal": "file:///j"},
        "agent": {"blocks": "/b"},
        "receiver": receiver,
        **({} if kafka is None else {"kafka": kafka}),
    }
    if "letters" in receiver:
        values |= {"dead_letters": {"topic": receiver["letters"]}, "receiver": {"source": receiver["source"]}}
    with pytest.raises(SettingsError, match=message):
        from_values(values)


def test_the_examples_files_are_read_by_whole_lines_from_where_the_last_one_ended(tmp_path: Path) -> None:
    """Half a line is none yet; a file that was cut off is a fault and not ignored (INV-5); another file has another identity."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\nthr")
    tail = Tail(str(tmp_path))
    assert list(tail.partitions()) == ["a.log"]
    tail.open("a.log", 0)
    (first,) = tail.poll(["a.log"], 1, 0.0)["a.log"]
    assert (first.value, first.offset) == (b"one", 3)
    assert [(r.value, r.offset) for r in tail.poll(["a.log"], 9, 0.0)["a.log"]] == [(b"two", 7)]
    assert tail.poll(["a.log"], 9, 0.0) == {}
    with path.open("ab") as file:
        file.write(b"ee\n\n")
    assert [(r.value, r.offset) for r in tail.poll(["a.log"], 9, 0.0)["a.log"]] == [(b"three", 13), (b"", 14)]
    again = Tail(str(tmp_path))
    again.open("a.log", 8)
    assert [r.offset for r in again.poll(["a.log"], 9, 0.0)["a.log"]] == [13, 14], "as another process reads it"
    identity = tail.identity("a.log")
    path.rename(tmp_path / "a.log.1")
    assert tail.poll(["a.log"], 9, 0.0) == {} and list(tail.partitions()) == []
    with pytest.raises(RetryLater):
        tail.identity("a.log")
    path.write_bytes(b"new\n")
    assert tail.identity("a.log") != identity
    with pytest.raises(OffsetGone, match="truncated"):
        tail.poll(["a.log"], 9, 0.0)
    with pytest.raises(OffsetGone, match="truncated"):
        tail.open("a.log", 5)
    path.write_bytes(b"x" * CHUNK_BYTES)
    tail.open("a.log", 0)
    with pytest.raises(ValueError, match="the line at byte 0 is longer"):
        tail.poll(["a.log"], 9, 0.0)
