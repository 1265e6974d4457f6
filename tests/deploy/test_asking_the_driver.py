"""``status``, ``offsets`` and ``recover --accept-loss`` against a driver that is made up."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from deploy.commands.inspection.process_tables import _blocks, request_rates
from deploy.commands.inspection.status import tiers_text
from deploy.commands.offsets import group as offsets
from deploy.console.invocation import person
from deploy.main import main
from forebay import messages as m
from forebay.model.errors import RefusedError

FAULT = "t/0: Kafka no longer holds offsets 30 to 35; `forebay offsets accept-gap t/0 30 35` goes on"


def run(project: Any, *arguments: str) -> int:
    return main(["--config", str(project.config), *arguments])


def test_status_shows_tables_for_people(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], make_status: Any, make_partition: Any
) -> None:
    made_up_driver.status = make_status(
        msgspec.structs.replace(make_partition(), receiver_id="holder"),
        receivers=(
            m.TrackedReceiver(
                receiver_id="[bold]r1", epoch=1, host="h", state="active", detail="", silent_seconds=-1,
                buffered_bytes=64_000_000, records=5, counters={"local_copies_given_up": 3}, rate=777.6,
            ),
        ),
        agents=(m.TrackedAgent(host="h", url="http://h:1", silent_seconds=1, blocks=2, used_bytes=1, free_bytes=2),),
        backpressure=True,
        rate=1234.5,
        batches=(m.BatchEntry(batch_id=1 << 40 | 3, number=3, time_ms=1, state="queued", blocks=1, records=9, attempts=0),),
    )  # fmt: skip
    assert run(project, "status") == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in ("t/0", "active", "30", "42", "12", "[bold]r1", "64.0 MB", "no heartbeat yet", "local_copies_given_up 3",
                 "holder", "http://h:1", "queued", "778", "1234 records/s"):  # fmt: skip
        assert part in out


def test_status_shows_blocks_that_an_agent_cannot_delete() -> None:
    agent = m.TrackedAgent(
        host="h", url="http://h:1", silent_seconds=1, blocks=2, used_bytes=1, free_bytes=2,
        undeleted_blocks=1, undeleted_cause="cannot delete /b/1: Input/output error",
    )  # fmt: skip
    assert _blocks(agent) == "2 (1 cannot be deleted: cannot delete /b/1: Input/output error)"


def test_status_shows_what_remote_stores_cost() -> None:
    counts = {"wal_put": 480, "wal_get": 20, "wal_bytes_out": 2_000_000_000, "wal_bytes_in": 7, "wal_seconds": 120}
    assert request_rates(counts, "wal_", "wal_seconds") == "250 requests/min (get 10, put 240), 250 per GB written"
    assert request_rates({"blocks_accepted": 3}, "wal_", "wal_seconds") == ""


def test_status_shows_the_share_of_local_reads() -> None:
    """Of ranges that were read: a tier that failed is no read."""
    counts = {"local": 92, "wal": 7, "agent": 1, "agent: unreachable": 7}
    assert tiers_text(counts) == "local 92, wal 7, agent 1, agent: unreachable 7 (92 % local)"
    assert tiers_text({}) == "none yet"
    assert tiers_text({"wal: damaged": 1}) == "wal: damaged 1"


def test_status_as_json_is_the_drivers_answer(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["records_completed"] == 20


@pytest.mark.parametrize("command", ["status", "offsets"])
def test_problem_is_reported_with_its_command_and_exit_code_1(
    project: Any,
    made_up_driver: Any,
    capsys: pytest.CaptureFixture[str],
    make_status: Any,
    make_partition: Any,
    command: str,
) -> None:
    """INV-5."""
    made_up_driver.status = make_status(make_partition(fault=FAULT))
    assert run(project, command) == 1
    assert capsys.readouterr().err == f"forebay: {FAULT}\n"


def test_unreadable_batch_is_reported_with_its_command_and_exit_code_1(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], make_status: Any
) -> None:
    """INV-5: batches wait for a person, though the driver runs and intake goes on."""
    message = "no tier has t/0[0, 5); `forebay recover --accept-loss 3 RANGE`"
    batch = m.BatchEntry(
        batch_id=3, number=3, time_ms=1, state="unreadable", blocks=1, records=5, attempts=1, detail=message
    )
    made_up_driver.status = make_status(batches=(batch,))
    assert run(project, "status") == 1
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("made_up_driver")
def test_commands_that_only_read_need_no_more_than_a_readers_token(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that change something refuse it before they send a request."""
    monkeypatch.setenv("FOREBAY_TOKENS", "reader a-token-of-a-reader")
    refused = "no token in FOREBAY_TOKENS is for operator"
    for command, code in (("status", 0), ("cursors", 0), ("offsets", 0), ("lag", 0), ("batches", 1)):
        assert run(project, command) == code, "this driver has no route for batches"
        assert refused not in capsys.readouterr().err
    assert run(project, "pause") == 2
    assert refused in capsys.readouterr().err


def cursor(name: str, state: str, detail: str = "") -> m.TrackedCursor:
    return m.TrackedCursor(cursor=name, user="h pid 1", state=state, silent_seconds=3.2, behind=40, detail=detail)


@pytest.mark.parametrize("command", ["status", "cursors"])
def test_expired_cursor_is_reported_with_its_command_and_exit_code_1(
    command: str, project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], make_status: Any
) -> None:
    """INV-5: what its query had yet to read is held no more."""
    held = (cursor("a", "at work"), cursor("b", "expired", "expired: no heartbeat of h pid 1 for 200.0 h"))
    made_up_driver.status = make_status(cursors=held, held_for_cursors=2_000_000)
    assert run(project, command) == 1
    out, err = capsys.readouterr()
    assert "cursor b expired: no heartbeat of h pid 1 for 200.0 h" in err and "forebay cursors drop b --apply" in err
    assert ("1 at work, 1 expired; the WAL keeps 2.0 MB" if command == "status" else "3 s ago") in out


def test_cursor_is_dropped_only_with_apply(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], make_status: Any
) -> None:
    held = msgspec.structs.replace(cursor("a", "silent"), opened_ms=1_700_000_000_000)
    made_up_driver.status = make_status(cursors=(held,))
    assert run(project, "cursors") == 0
    assert "2023-11-14T22:13:20" in "".join(capsys.readouterr().out.split())
    assert run(project, "cursors", "drop", "a") == 0
    assert "would drop cursor a of h pid 1 (silent, 40 offsets behind)" in capsys.readouterr().err
    assert run(project, "cursors", "drop", "b") == 1
    assert "there is no cursor b" in capsys.readouterr().err
    assert made_up_driver.drops == []
    assert run(project, "cursors", "drop", "a", "--because", "the job was removed", "--yes") == 0
    assert [(drop.cursor, drop.cause) for drop in made_up_driver.drops] == [("a", person("the job was removed"))]


def test_a_failed_driver_is_exit_code_1(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], make_status: Any
) -> None:
    made_up_driver.status = make_status(state="failed")
    assert run(project, "status") == 1
    assert "the driver failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["offsets"],
        ["offsets", "accept-gap", "t/0", "1", "2", "--yes"],
        ["recover", "--accept-loss", "3"],
        ["stop"],
    ],
)
def test_a_driver_that_does_not_answer_is_exit_code_3(
    project: Any, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(project, *arguments) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("forebay: no driver of stream flights at http://127.0.0.1:1: start it with `forebay up` (")


def test_status_names_a_journal_out_of_reach_when_no_driver_answers(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver ends when it can't write its journal, so only the command can say why nothing answers."""
    (project.folder / "blocked").write_text("a file, where a folder would have to be")
    project.replace(f"{project.folder}/journal", f"{project.folder}/blocked/journal")
    assert run(project, "status") == 1
    err = capsys.readouterr().err
    assert err.startswith("forebay: no driver of stream flights at ")
    assert "Next step: make driver.journal readable and writable again" in err
    assert "; driver.journal: " in err and "blocked: Not a directory" in err and "wal.url" not in err


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_accepting_a_gap_changes_nothing_without_apply(
    project: Any,
    made_up_driver: Any,
    capsys: pytest.CaptureFixture[str],
    make_status: Any,
    make_partition: Any,
    flags: list[str],
) -> None:
    made_up_driver.status = make_status(make_partition(fault=FAULT))
    assert run(project, "offsets", "accept-gap", "t/0", "30", "35", *flags) == 0
    assert made_up_driver.gaps == []
    assert "nothing was changed: add --apply" in capsys.readouterr().err


def test_accepting_a_gap_asks_the_driver_for_exactly_that_range(project: Any, made_up_driver: Any) -> None:
    assert run(project, "offsets", "accept-gap", "t/0", "30", "35", "--yes") == 0
    assert made_up_driver.gaps == [
        m.AcceptGapRequest(topic="t", partition=0, from_offset=30, until_offset=35, cause=person())
    ]


def test_a_receiver_is_fenced_first_and_the_gap_accepted_when_the_wal_has_been_searched(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "SEARCH_PAUSE_SECONDS", 0.0)
    made_up_driver.refusals = [RefusedError("not yet", "not-searched")] * 2
    fence = ("offsets", "accept-gap", "t/0", "30", "35", "--fence", "r1")
    assert run(project, *fence, "--yes") == 0
    assert made_up_driver.fences == [m.FenceRequest(topic="t", partition=0, receiver_id="r1", cause=person())]
    assert len(made_up_driver.gaps) == 1
    assert "receiver r1 is fenced; the gap was recorded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refusal", "code", "part"),
    [
        (RefusedError("no open fault", "not-found"), 0, "nothing is lost"),
        (
            RefusedError("waits for 30 to 33", "conflict"),
            1,
            "receiver r1 is fenced, but the gap was not accepted: waits for 30 to 33",
        ),
    ],
)
def test_gap_after_fencing_may_be_smaller_or_empty(
    project: Any,
    made_up_driver: Any,
    capsys: pytest.CaptureFixture[str],
    refusal: RefusedError,
    code: int,
    part: str,
) -> None:
    made_up_driver.refusals = [refusal]
    assert run(project, "offsets", "accept-gap", "t/0", "30", "35", "--fence", "r1", "--yes") == code
    assert made_up_driver.gaps == []
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("partition", "code", "part"), [("t/0", 1, "waits for no decision"), ("x/9", 2, "its partitions are t/0")]
)
def test_gap_of_a_partition_without_a_fault_is_refused_before_any_request(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], partition: str, code: int, part: str
) -> None:
    assert run(project, "offsets", "accept-gap", partition, "1", "2") == code
    assert part in capsys.readouterr().err


BATCH = m.BatchEntry(batch_id=1 << 40 | 3, number=3, time_ms=1, state="failing", blocks=1, records=9, attempts=4)


@pytest.mark.parametrize("named", ["3", str(1 << 40 | 3)])
def test_a_loss_is_accepted_by_batch_number_or_id_and_only_with_yes(
    project: Any, made_up_driver: Any, make_status: Any, named: str
) -> None:
    made_up_driver.status = make_status(batches=(BATCH,))
    assert run(project, "recover", "--accept-loss", named, "t/0[10,20)") == 0
    assert made_up_driver.losses == []
    assert run(project, "recover", "--accept-loss", named, "t/0[10,20)", "--yes") == 0
    assert made_up_driver.losses == [m.AcceptLossRequest(batch_id=1 << 40 | 3, ranges=("t/0[10, 20)",), cause=person())]


def test_a_completed_batch_has_no_loss_to_accept(
    project: Any, made_up_driver: Any, make_status: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_driver.status = make_status(batches=(msgspec.structs.replace(BATCH, state="completed"),))
    assert run(project, "recover", "--accept-loss", "3", "t/0[10, 20)", "--yes") == 1
    assert made_up_driver.losses == []
    assert "no unfinished batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        (["--to-batch", "7"], (7, 0)),
        (["--to-time", "2026-11-21T14:30:00Z"], (0, 1795271400000)),
        (["--to-time", "2026-11-21T16:30:00.5+02:00"], (0, 1795271400500)),
    ],
)
def test_replay_request_names_the_user_and_the_reason(
    option: list[str], wanted: tuple[int, int], project: Any, made_up_driver: Any
) -> None:
    assert run(project, "recover", *option, "--because", "mended", "--yes") == 0
    (request,) = made_up_driver.replays
    assert (request.batch, request.time_ms, request.cause) == (*wanted, person("mended"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to-time", "2026-11-21T14:30:00"], "add its time zone"),
        (["--to-time", "yesterday"], "write it as 2026-11-21T14:30:00Z"),
        (["--to-batch", "0"], "0 is not in the range"),
        (["--to-batch", "1", "--to-time", "2026-11-21T14:30:00Z"], "exclude each other"),
        (["--to-batch", "1", "t/0[1, 2)", "--yes"], "RANGE is only allowed with --accept-loss"),
    ],
)
def test_impossible_replay_is_refused_with_one_sentence(
    arguments: list[str], message: str, project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, "recover", *arguments) == 2
    assert message in capsys.readouterr().err
    assert made_up_driver.replays == []


def test_managed_receivers_are_shown_with_state_host_restarts_and_last_exit(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], make_status: Any
) -> None:
    moving = m.ManagedReceiver(
        receiver_id="flights-r0", state="draining", host="h1", moves_to="h2", pid=77, restarts=3, exit_code=-9
    )
    fault = "receiver flights-r1 has no place: start an agent"
    homeless = m.ManagedReceiver(receiver_id="flights-r1", state="scheduled", host="", fault=fault)
    made_up_driver.status = make_status(managed=(moving, homeless))
    assert run(project, "status") == 1
    shown = capsys.readouterr()
    assert f"forebay: {fault}" in shown.err
    (line,) = (line for line in shown.out.splitlines() if "flights-r0" in line)
    assert line.split() == ["flights-r0", "draining", "h1", "→", "h2", "77", "3", "was", "killed", "by", "SIGKILL"]
