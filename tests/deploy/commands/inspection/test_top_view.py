"""The screen of ``forebay top``: what it shows at every size, with hostile names, and what keys change."""

from __future__ import annotations

import io
import queue
from dataclasses import replace
from typing import Any

import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console, Group

from deploy.commands.inspection.top import feed as feeds
from deploy.commands.inspection.top.feed import Feed
from deploy.commands.inspection.top.keys import Keyboard
from deploy.commands.inspection.top.screen import LISTS, Answers, Key, Screen, disconnected, pressed, received
from deploy.commands.inspection.top.view import snapshot, sparkline, view
from forebay import messages as m
from forebay.client import Event
from forebay.model.errors import AccessError, UnreachableError
from forebay.model.text import one_line, printable, printable_json
from forebay.process.clock import ManualClock

#: names and errors as an attacker writes them: erase the screen, change the title, markup, wide and right-to-left characters
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]航空🚀[/red]\u202eevil\r\nline\x9b31m\x00"


def overview(**changes: Any) -> m.OverviewAnswer:
    names = ("kafka", "blocks", "wal", "tracker", "batches", "committed")
    steps = tuple(
        m.Step(
            name=name, records_per_second=1234.5, waiting_records=number * 1000, oldest_seconds=2.5, delay_seconds=None
        )
        for number, name in enumerate(names)
    )
    values: dict[str, Any] = {
        "time_ms": 1_795_424_700_000, "stream": "flights", "release": "0.1.0", "state": "running", "steps": steps,
        "partitions": {"active": 990, "unclaimed": 10}, "receivers": {"active": 3, "lost": 1}, "hosts": {"active": 2},
        "batches": {"completed": 86_400}, "lag_records": 123_456, "lag_seconds": 7.2,
        "totals": m.Totals(records_taken=5, records_completed=4, batches_completed=2, bytes=1_000_000),
    }  # fmt: skip
    return m.OverviewAnswer(**{**values, **changes})


def batch(number: int, **changes: Any) -> m.BatchEntry:
    values: dict[str, Any] = {
        "batch_id": number, "number": number, "time_ms": 1, "state": "completed", "blocks": 1, "records": 10, "attempts": 1,
        "scheduling_delay_ms": 5, "processing_ms": 1_500, "total_delay_ms": 130_000,
    }  # fmt: skip
    return m.BatchEntry(**{**values, **changes})


def receiver(name: str, state: str = "active", detail: str = "") -> m.TrackedReceiver:
    return m.TrackedReceiver(
        receiver_id=name,
        epoch=1,
        host=name,
        state=state,
        detail=detail,
        silent_seconds=0.4,
        buffered_bytes=5,
        records=7,
    )


def partition(topic: str, number: int) -> m.TrackedPartition:
    return m.TrackedPartition(
        topic=topic, partition=number, incarnation=1, topic_id="", position=30, completed=20, high_watermark=42,
        receiver_id=topic, token=1, state="active", lag=None, lag_seconds=None,
    )  # fmt: skip


def host(name: str) -> m.TrackedAgent:
    return m.TrackedAgent(host=name, url="u", silent_seconds=-1, blocks=1, used_bytes=2, free_bytes=3, labels=(name,))


def answers(name: str = "plain", **changes: Any) -> Answers:
    series = m.SeriesAnswer(
        step_ms=10_000, times_ms=(1, 2, 3),
        values={"records_in_per_second": (1.0, None, 3.0), "lag_records": (0.0, 0.0, 5.0), "total_delay_ms": (None,) * 3},
    )  # fmt: skip
    return Answers(
        overview(**changes), 100.0, series,
        batches=(batch(60, state="failing", detail=name), *(batch(number) for number in range(59, 0, -1))),
        receivers=tuple(receiver(f"{name}-{number}", detail=name) for number in range(3)),
        partitions=tuple(partition(name, number) for number in range(30)),
        hosts=(host(name),),
        totals={"batches": 1_000, "receivers": 3, "partitions": 30, "hosts": 1},
    )  # fmt: skip


def hostile() -> Answers:
    problem = m.Problem(kind="job", cause=f"job: {HOSTILE}", command=f"forebay {HOSTILE}")
    return answers(
        HOSTILE, stream=f"s{HOSTILE}", detail=HOSTILE, problems=(problem,) * 6, problem_count=9, pending=(problem,),
        paused=True, pause_cause=HOSTILE, leader=HOSTILE, partitions={HOSTILE: 1},
        steps=(m.Step(name=HOSTILE, detail=HOSTILE), *overview().steps),
    )  # fmt: skip


def printed(group: Group, width: int, height: int) -> tuple[str, list[str]]:
    """Return what the terminal receives, and the lines that a terminal of that size then shows."""
    file = io.StringIO()
    Console(file=file, width=width, height=height, force_terminal=True, color_system="truecolor").print(group, end="")
    terminal = pyte.Screen(width, height + 200)  # too many lines would be seen
    pyte.Stream(terminal).feed(file.getvalue().replace("\n", "\r\n"))
    return file.getvalue(), [line.rstrip() for line in terminal.display if line.strip()]


@pytest.mark.parametrize("made", [answers(), hostile()], ids=["plain", "hostile"])
@pytest.mark.parametrize("shown_list", LISTS)
def test_every_size_shows_whole_lines_and_no_control_character(made: Answers, shown_list: Any) -> None:
    screen = Screen(f"http://driver{HOSTILE}", made, lost=HOSTILE, shown_list=shown_list)
    for width, height in ((20, 5), (40, 12), (60, 16), (80, 24), (95, 26), (96, 40), (200, 60), (1, 1)):
        raw, lines = printed(view(screen, width, height, 105.0), width, height)
        assert len(lines) <= height, (width, height)
        for sequence in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\x00", "\r"):
            assert sequence not in raw, (width, height, sequence)
        for line in view(screen, width, height, 105.0).renderables:
            assert cell_len(str(line)) <= width, (width, height, str(line))


def test_the_first_view_says_what_needs_a_person_and_where_records_wait() -> None:
    problem = m.Problem(kind="receiver-gone", cause="receiver r2 is silent for 31 s", command="start it again")
    made = answers(problems=(problem,), problem_count=1)
    _, lines = printed(view(Screen("http://d:1", made), 120, 40, 100.0), 120, 40)
    text = "\n".join(lines)
    assert lines[0].startswith("flights running  ") and "http://d:1" in lines[0]
    assert lines[1:3] == ["! receiver r2 is silent for 31 s", "  → start it again"]
    assert "Kafka ─▶" in lines[3] and "committed" in lines[3]
    assert "1,234 records/s" in lines[4] and "waiting 5,000" in lines[5] and "oldest 2.5 s" in lines[6]
    assert "lag        123.5k" not in text and "123,456 records, 7.2 s" in text
    assert "partitions 990 active  10 unclaimed" in text
    assert "batches " in text and "1–" in text and "of 1000" in text and "60 failing" in text
    assert "2 min 10 s" in text
    assert lines[-1] == "q quit  p pause  ←→ list  ↑↓ scroll"


def test_a_small_terminal_keeps_problems_and_steps() -> None:
    made = answers(problems=(m.Problem(kind="job", cause="the job fails", command="fix it"),), problem_count=1)
    _, lines = printed(view(Screen("u", made), 40, 12, 100.0), 40, 12)
    assert "! the job fails" in lines[1]
    assert any(line.startswith("Kafka ") for line in lines) and any(line.startswith("committed") for line in lines)


def test_colours_are_off_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True)
    console.print(view(Screen("u", answers()), 80, 24, 100.0))
    assert not any(f"\x1b[{code}m" in file.getvalue() for code in (31, 32, 33, 36, "1;31"))


def test_a_lost_driver_leaves_the_last_answer_with_its_age() -> None:
    screen = disconnected(Screen("u", answers()), "connection refused")
    _, lines = printed(view(screen, 100, 30, 142.0), 100, 30)
    assert "no answer for 42 s, this is the last one: connection refused" in lines[1]
    assert any("Kafka" in line for line in lines)
    assert received(screen, answers()).lost == ""
    _, lines = printed(view(disconnected(Screen("u"), "refused"), 40, 10, 0.0), 40, 10)
    assert lines == ["forebay top: u", "refused", "q quit  p pause  ←→ list  ↑↓ scroll"]


def test_keys_change_list_place_and_pause() -> None:
    screen = Screen("u", answers())
    assert pressed(screen, "quit").ended
    assert [pressed(screen, "right").shown_list, pressed(screen, "left").shown_list] == ["receivers", "hosts"]
    assert pressed(pressed(screen, "down"), "page-down").first == 11
    far = replace(screen, first=58)
    assert pressed(far, "page-down").first == 59
    assert pressed(far, "home").first == 0 and pressed(screen, "up").first == 0
    paused = pressed(screen, "pause")
    newer = replace(answers(), overview=overview(stream="newer"))
    held = received(paused, newer)
    assert held.answers is screen.answers
    assert pressed(held, "pause").answers is newer
    assert pressed(screen, "other") == screen


def test_a_list_that_becomes_shorter_keeps_a_place_in_it() -> None:
    screen = replace(Screen("u", answers()), first=59)
    assert received(screen, replace(answers(), batches=(batch(1),))).first == 0


@pytest.mark.parametrize(
    ("texts", "keys"),
    [
        (["q"], ["quit"]), (["p "], ["pause", "pause"]), (["\x1b[A\x1bOB"], ["up", "down"]), (["\x1b", "[C"], ["right"]),
        (["\x1b[", "6~"], ["page-down"]), (["\x1b[5", "~q"], ["page-up", "quit"]), (["ü"], ["other"]), (["\t"], ["right"]),
        (["\x1b[200~q\x1b[201~"], ["other", "quit", "other"]), (["\x1b\x1bq"], ["other", "other", "quit"]),
            (["\x1b[\x00q"], ["other", "quit"]),
    ],
)  # fmt: skip
def test_keys_are_read_from_sequences_that_may_arrive_in_parts(texts: list[str], keys: list[Key]) -> None:
    keyboard = Keyboard(0)
    try:
        assert [key for text in texts for key in keyboard.keys(text)] == keys
    finally:
        keyboard.close()


def test_bars_grow_with_their_values() -> None:
    assert sparkline((0.0, 1.0, None, 8.0), 10) == "▁▂ █"
    assert sparkline((5.0, 0.0, 0.0), 2) == "▁▁"
    assert sparkline((), 5) == ""


def test_a_snapshot_has_every_list() -> None:
    raw, lines = printed(snapshot(Screen("u", hostile()), 160, 100.0), 160, 300)
    assert "\x1b[2J" not in raw
    text = "\n".join(lines)
    for name in ("batches: 60 of 1000", "receivers: 3 of 3", "partitions: 30 of 30", "hosts: 1 of 1"):
        assert name in text


class Stubbed:
    """A client whose events are those of a list; an exception in it is raised."""

    def __init__(self, *turns: list[Any]) -> None:
        self.turns = list(turns)
        self.asked: list[str] = []

    def events(self) -> Any:
        for one in self.turns.pop(0) if self.turns else [UnreachableError("over")]:
            if isinstance(one, Exception):
                raise one
            yield one

    def series(self, **_: Any) -> m.SeriesAnswer:
        self.asked.append("series")
        return m.SeriesAnswer(step_ms=1)

    def batches(self, **_: Any) -> m.BatchesAnswer:
        self.asked.append("batches")
        return m.BatchesAnswer(total=1, batches=(batch(1),))


def test_the_feed_reconnects_and_ends_with_an_error_that_no_attempt_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "PAUSE_SECONDS_MIN", 0.01)
    reported: queue.SimpleQueue[Any] = queue.SimpleQueue()
    event = Event("overview", overview())
    refused = AccessError("no token")
    client: Any = Stubbed([event, Event("batch-completed", {}), event], [UnreachableError("gone")], [event], [refused])
    feed = Feed(client, ManualClock(), wanted=lambda: "batches", show=reported.put, fail=reported.put)
    feed.start()
    got = [reported.get(timeout=30.0) for _ in range(5)]
    assert [one if isinstance(one, str) else "answers" for one in got] == [
        "answers",
        "answers",
        "gone",
        "answers",
        "no token",
    ]
    feed._thread.join(30.0)
    assert feed.error is refused
    assert client.asked == ["series", "batches", "batches", "batches"]


def test_foreign_text_is_escaped() -> None:
    assert printable("a\x1b[1m\nb\x7f") == "a\\x1b[1m\nb\\x7f"
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    assert printable("航空🚀 [red]") == "航空🚀 [red]"
    assert printable_json('{"a":"\x9b\u202e\U000e0041"}') == '{"a":"\\u009b\\u202e\\udb40\\udc41"}'
