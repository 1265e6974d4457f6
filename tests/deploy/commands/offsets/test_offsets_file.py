"""Offsets as a file: its content, and the imports that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tenacity

from deploy.commands.offsets import file as offsets_file
from deploy.commands.offsets.file import Commit, commits, exported, read_file, starting_offsets, unheld
from deploy.main import main
from driver.journal import events as ev
from driver.journal.log import opening as journal
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.kafka.client import admin
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.again import produce
from tests.support.state.tracked import STREAM, Tracked
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


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a Kafka that is not there."""

    class Gone(admin.KafkaAdmin):
        def __init__(self, options: Any) -> None:
            super().__init__(options, timeout_seconds=0.2)

    monkeypatch.setattr(admin, "KafkaAdmin", Gone)


def test_export_round_trips_positions_incarnations_and_committed_offsets(
    state: State, settings: Settings, tmp_path: Path
) -> None:
    tp = state.partitions["t/0"].tp
    offsets = exported(state, settings, {tp: 17}, 5)
    path = tmp_path / "offsets.json"
    path.write_bytes(msgspec.json.encode(offsets))
    assert read_file(path) == offsets
    first, second = offsets.partitions
    assert (first.position, first.completed, first.committed, first.incarnation, first.topic_id) == (
        20,
        10,
        17,
        1,
        "id-1",
    )
    assert (second.position, second.completed, second.committed) == (0, 0, None)
    assert [(x.number, x.start, x.end) for x in first.incarnations] == [(1, 0, None)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a file that"),
        ('{"format": 2}', "has format 2; this release reads formats up to 1"),
        ('{"format": 1}', "missing required field"),
        ("[1]", "is not a file that"),
    ],
)
def test_file_of_another_format_is_refused_with_one_sentence(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_file(path)
    with pytest.raises(UsageError, match="can't be read"):
        read_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("field", "value"), [("completed", 21), ("completed", -1), ("position", 1 << 63), ("life", 0), ("partition", -1)]
)
def test_impossible_offsets_are_refused(
    field: str, value: int, state: State, settings: Settings, tmp_path: Path
) -> None:
    document = msgspec.to_builtins(exported(state, settings, {}, 5))
    document["partitions"][0][field] = value
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"is impossible|is not a file"):
        read_file(path)


def test_streams_groups_get_their_own_offsets_with_timeline_and_incarnation(state: State, settings: Settings) -> None:
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


def test_offsets_of_another_incarnation_are_refused_for_the_streams_groups(state: State, settings: Settings) -> None:
    offsets = exported(state, settings, {}, 5)
    apply(state, ev.IncarnationBegun(start=ev.IncarnationStart("t", 0, 0, "id-2"), time_ms=1, cause="recreated"))
    with pytest.raises(RefusedError, match="the same offsets name other records"):
        commits(offsets, state, settings, None, "completed")


def test_other_group_continues_after_the_completed_or_the_durable_position(state: State, settings: Settings) -> None:
    offsets = exported(state, settings, {}, 5)
    for use, offset in (("completed", 10), ("position", 20)):
        for known in (state, None):
            first = commits(offsets, known, settings, "other", use)[0]  # type: ignore[arg-type]
            assert (first.group, first.offset, first.metadata) == ("other", offset, "")


def test_a_new_stream_can_begin_at_a_files_offsets(
    project: Any, state: State, settings: Settings, capsys: pytest.CaptureFixture[str], short_patience: None
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
    assert "set kafka.starting_offsets to begin at these offsets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("offset", "metadata", "said"),
    [
        (9, "", "before the beginning of what Kafka holds, 10 to 20"),
        (9, "forebay:1:1", ""),  # the WAL still has what the stream's own groups passed
        (10, "", ""),
        (20, "", ""),
        (21, "", "beyond the end of what Kafka holds, 10 to 20"),
        (21, "forebay:1:1", "beyond the end of what Kafka holds, 10 to 20"),
    ],
)
def test_offset_is_held_from_the_first_to_the_next_written_one(offset: int, metadata: str, said: str) -> None:
    commit = Commit("g", "t", 0, offset, -1, metadata)
    message = unheld([commit], {"t": 1}, {commit.tp: (10, 20)})
    assert message == ([f"t/0: offset {offset} for group g is {said}"] if said else [])


def test_partitions_and_topics_that_kafka_lacks_are_named() -> None:
    wanted = [Commit("", "t", 2, 5, -1, ""), Commit("g", "u", 0, 5, -1, "forebay:1:1")]
    assert unheld(wanted, {"t": 2}, {}) == [
        "t/2: offset 5, and Kafka's topic t has 2 partitions, from 0 on",
        "u/0: offset 5 for group g, and Kafka has no topic u",
    ]


# ---- against a broker ------------------------------------------------------------------------------------------------


class Importing:
    """A stream over a real topic of two partitions, with 20 records each: t/0 taken in up to 20 and completed up to 10."""

    def __init__(self, project: Any, broker: KafkaBroker, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.topic, self.group = topic, f"{topic}-others"
        self._broker, self._project, self._capsys = broker, project, capsys
        broker.create_topic(topic, 2)
        for partition in (0, 1):
            produce(broker.options, TopicPartition(topic, partition), 20)
        project.replace('"127.0.0.1:1"', f'"{broker.address}"')
        with KafkaAdmin(broker.options) as admin:
            topic_id = admin.topic_ids([topic])[topic]
        # the coordinator of an unused group takes a moment to learn that it coordinates the group
        answered = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(UnreachableError), stop=tenacity.stop_after_delay(PATIENCE_SECONDS),
            wait=tenacity.wait_fixed(0.1), reraise=True,
        )  # fmt: skip
        assert answered(self.committed) == {}
        part = {"topic": topic, "leader_epoch": 0, "life": 1, "topic_id": topic_id, "committed": None, "lives": []}
        self.document: dict[str, Any] = {
            "format": 1, "stream": "flights", "lineage": 1, "events": 1, "exported_ms": 1, "group": "g",
            "completed_group": "g.completed", "partitions": [
                {**part, "partition": 0, "position": 20, "completed": 10},
                {**part, "partition": 1, "position": 0, "completed": 0},
            ],
        }  # fmt: skip

    def __call__(self, *options: str) -> tuple[int, str]:
        """Exit code, and what it said."""
        path = self._project.folder / "offsets.json"
        path.write_text(json.dumps(self.document))
        code = main(["--config", str(self._project.config), "offsets", "import", str(path), *options])
        return code, self._capsys.readouterr().err

    def delete_before(self, offset: int) -> None:
        with KafkaAdmin(self._broker.options) as admin:
            admin.delete_records({TopicPartition(self.topic, 0): offset})

    def committed(self) -> dict[int, int]:
        partitions = [TopicPartition(self.topic, number) for number in (0, 1)]
        with KafkaAdmin(self._broker.options) as admin:
            return {tp.partition: found.offset for tp, found in admin.committed(self.group, partitions).items()}


@pytest.fixture
def importing(
    project: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> Importing:
    return Importing(project, kafka_broker, topic_name(), capsys)


@pytest.mark.kafka
def test_import_of_an_offset_that_kafka_does_not_hold_is_refused_and_changes_nothing(importing: Importing) -> None:
    """Otherwise another consumer would silently begin elsewhere by its own ``auto.offset.reset``."""
    to = ("--group", importing.group, "--yes")
    importing.delete_before(11)
    code, said = importing(*to)
    assert code == 1
    assert (
        f"{importing.topic}/0: offset 10 for group {importing.group} is before the beginning of what Kafka holds, 11 to 20. "
        "Nothing was changed; --force sets them anyway"
    ) in said
    importing.document["partitions"][1] |= {"position": 21, "completed": 21}
    code, said = importing("--group", importing.group)
    assert code == 1 and "11 to 20; " in said, "a dry run says it too"
    assert (
        f"{importing.topic}/1: offset 21 for group {importing.group} is beyond the end of what Kafka holds, 0 to 20"
        in said
    )
    importing.document["partitions"][1] |= {"partition": 7, "position": 3, "completed": 3}
    code, said = importing(*to)
    assert code == 1 and f"{importing.topic}/7: offset 3" in said and "has 2 partitions" in said
    assert importing.committed() == {}


@pytest.mark.kafka
def test_import_succeeds_if_kafka_holds_all_offsets_or_by_force(importing: Importing) -> None:
    assert importing("--group", importing.group, "--yes")[0] == 0
    assert importing.committed() == {0: 10, 1: 0}
    importing.delete_before(15)
    importing.document["partitions"][1] |= {"position": 30, "completed": 30}
    code, said = importing("--group", importing.group, "--yes", "--force")
    assert code == 0 and said.count("ignored because of --force: ") == 2
    assert importing.committed() == {0: 10, 1: 30}


@pytest.mark.kafka
def test_starting_offsets_of_a_new_stream_are_compared_with_kafka(importing: Importing) -> None:
    """The driver would refuse these lines at its first start."""
    assert importing()[0] == 0
    importing.delete_before(11)
    code, said = importing()
    assert code == 1 and f"{importing.topic}/0: offset 10 is before the beginning of what Kafka holds, 11 to 20" in said
    assert importing("--force")[0] == 0


def test_unreachable_kafka_is_reported(
    project: Any, state: State, settings: Settings, capsys: pytest.CaptureFixture[str], short_patience: None
) -> None:
    path = project.folder / "offsets.json"
    path.write_bytes(msgspec.json.encode(exported(state, settings, {}, 5)))
    command = ["--config", str(project.config), "offsets", "import", str(path)]
    assert main(command) == 0
    assert "not compared with Kafka: Kafka at 127.0.0.1:1 did not answer" in capsys.readouterr().err
    assert main([*command, "--group", "others"]) == 3
    assert "Kafka at 127.0.0.1:1 did not answer" in capsys.readouterr().err
    assert main([*command, "--group", "others", "--force"]) == 0
    assert "not compared with Kafka" in capsys.readouterr().err


def test_an_export_without_kafka_says_what_it_leaves_out(
    project: Any, capsys: pytest.CaptureFixture[str], short_patience: None
) -> None:
    t = worked()
    led, state = journal.lead(
        open_storage(f"file://{project.folder}/journal"), STREAM, "test", 1, lambda: 1.0, lambda: 7
    )
    for event in t.events:
        apply(state, event)
    led.append(t.events)
    led.sync()
    led.close()
    path = project.folder / "offsets.json"
    assert main(["--config", str(project.config), "offsets", "export", "--file", str(path)]) == 0
    assert "the file has no committed offsets" in capsys.readouterr().err
    assert [p.committed for p in offsets_file.read_file(path).partitions] == [None, None]
    assert main(["--config", str(project.config), "offsets", "export"]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["position"] == 20
