"""Offsets as a file: what is in it, and what an import refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy import offsets_file
from deploy.main import main
from deploy.offsets_file import commits, exported, read_file, starting_offsets
from driver import events as ev
from driver import journal
from driver.state import State, apply
from forebay.errors import RefusedError, UsageError
from forebay.settings import Settings, load
from tests.support.tracked import STREAM, Tracked
from wal.storage import open_storage


def worked() -> Tracked:
    """t/0 taken in up to 20 and completed up to 10, t/1 at its beginning."""
    t = Tracked(partitions=2)
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    t.complete(t.batch())
    t.take_in(epoch, token, 20)
    return t


@pytest.fixture
def settings(project: Any) -> Settings:
    return load(project.config, {})


@pytest.fixture
def state() -> State:
    return worked().state


def test_the_file_holds_positions_lives_and_what_is_committed_and_is_read_as_it_was_written(
    state: State, settings: Settings, tmp_path: Path
) -> None:
    tp = state.partitions["t/0"].tp
    offsets = exported(state, settings, {tp: 17}, 5)
    path = tmp_path / "offsets.json"
    path.write_bytes(msgspec.json.encode(offsets))
    assert read_file(path) == offsets
    first, second = offsets.partitions
    assert (first.position, first.completed, first.committed, first.life, first.topic_id) == (20, 10, 17, 1, "id-1")
    assert (second.position, second.completed, second.committed) == (0, 0, None)
    assert [(x.life, x.start, x.end) for x in first.lives] == [(1, 0, None)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no file that"),
        ('{"format": 2}', "has format 2, this release reads up to 1"),
        ('{"format": 1}', "missing required field"),
        ("[1]", "is no file that"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_file(path)
    with pytest.raises(UsageError, match="can't be read"):
        read_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("field", "value"), [("completed", 21), ("completed", -1), ("position", 1 << 63), ("life", 0), ("partition", -1)]
)
def test_offsets_that_can_t_be_are_refused(
    field: str, value: int, state: State, settings: Settings, tmp_path: Path
) -> None:
    document = msgspec.to_builtins(exported(state, settings, {}, 5))
    document["partitions"][0][field] = value
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"can't be|is no file"):
        read_file(path)


def test_the_streams_groups_get_their_own_offsets_with_lineage_and_life(state: State, settings: Settings) -> None:
    wanted = commits(exported(state, settings, {}, 5), state, settings, None, "completed")
    assert {(c.group, str(c.tp), c.offset, c.metadata) for c in wanted} == {
        ("forebay.flights", "t/0", 20, "forebay:1:1"),
        ("forebay.flights", "t/1", 0, "forebay:1:1"),
        ("forebay.flights.completed", "t/0", 10, "forebay:1:1"),
        ("forebay.flights.completed", "t/1", 0, "forebay:1:1"),
    }


@pytest.mark.parametrize(("field", "value"), [("position", 21), ("completed", 11)])
@pytest.mark.parametrize("alone", [False, True])
def test_nothing_is_committed_for_the_streams_groups_beyond_what_the_journal_holds(
    field: str, value: int, alone: bool, state: State, settings: Settings
) -> None:
    """INV-1."""
    offsets = exported(state, settings, {}, 5)
    ahead = msgspec.structs.replace(offsets.partitions[0], **{field: value})
    offsets = msgspec.structs.replace(offsets, partitions=(ahead, offsets.partitions[1]))
    group = (settings.group if field == "position" else settings.completed_group) if alone else None
    with pytest.raises(RefusedError, match="INV-1"):
        commits(offsets, state, settings, group, "completed")


def test_offsets_of_another_life_are_refused_for_the_streams_groups(state: State, settings: Settings) -> None:
    offsets = exported(state, settings, {}, 5)
    apply(state, ev.LifeBegun(start=ev.LifeStart("t", 0, 0, "id-2"), time_ms=1, cause="recreated"))
    with pytest.raises(RefusedError, match="an offset means another record"):
        commits(offsets, state, settings, None, "completed")


def test_another_group_goes_on_after_what_is_completed_or_after_what_was_taken_in(
    state: State, settings: Settings
) -> None:
    offsets = exported(state, settings, {}, 5)
    for use, offset in (("completed", 10), ("position", 20)):
        for known in (state, None):
            first = commits(offsets, known, settings, "other", use)[0]  # type: ignore[arg-type]
            assert (first.group, first.offset, first.metadata) == ("other", offset, "")


def test_a_new_stream_can_begin_at_a_files_offsets(
    project: Any, state: State, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines are valid settings; without a journal nothing of the stream's own is committed."""
    path = project.folder / "offsets.json"
    path.write_bytes(msgspec.json.encode(exported(state, settings, {}, 5)))
    assert main(["--config", str(project.config), "offsets", "import", str(path)]) == 0
    lines = capsys.readouterr().out
    assert lines == starting_offsets(exported(state, settings, {}, 5), "completed")
    project.replace("[kafka]\n", lines)
    assert load(project.config, {}).kafka.starting_offsets == {"t/0": 10, "t/1": 0}
    assert main(["--config", str(project.config), "offsets", "import", str(path), "--yes"]) == 2
    assert "let it begin at these offsets by kafka.starting_offsets" in capsys.readouterr().err


def test_an_export_without_kafka_says_what_it_leaves_out(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = worked()
    led, state = journal.lead(
        open_storage(f"file://{project.folder}/journal"), STREAM, "test", 1, lambda: 1.0, lambda: 7
    )
    for event in t.events:
        apply(state, event)
    led.append(t.events)
    led.sync()
    from forebay.kafka import admin

    class Gone(admin.KafkaAdmin):
        def __init__(self, options: Any) -> None:
            super().__init__(options, timeout_seconds=0.2)

    monkeypatch.setattr(admin, "KafkaAdmin", Gone)
    path = project.folder / "offsets.json"
    assert main(["--config", str(project.config), "offsets", "export", "--file", str(path)]) == 0
    assert "committed offsets are left out" in capsys.readouterr().err
    assert [p.committed for p in offsets_file.read_file(path).partitions] == [None, None]
    assert main(["--config", str(project.config), "offsets", "export"]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["position"] == 20
