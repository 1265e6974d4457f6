"""``forebay batches`` against a driver whose batches are made up, over the routes of a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from deploy.console.batch_tables import delay
from deploy.main import main
from driver.http.batches import BatchQuery, list_batches
from driver.http.observation.observer import Observer
from driver.http.observation.routes import observer_routes
from forebay import messages as m
from forebay.http.application import application
from forebay.http.server import Server
from forebay.model.errors import RefusedError
from forebay.security.access import OPEN
from tests.support.state.observed import no_stream

FIRST = 1 << 40


def entry(number: int, state: str = "completed", **more: Any) -> m.BatchEntry:
    values: dict[str, Any] = {
        "time_ms": 1_763_700_000_000 + number * 1_000,
        "blocks": 2,
        "records": 11,
        "attempts": 1,
        **more,
    }
    return m.BatchEntry(batch_id=FIRST | number, number=number, state=state, **values)


BATCHES = (
    entry(1),  # of an older release
    entry(
        2, bytes=110, scheduling_delay_ms=85, processing_ms=1_250, total_delay_ms=303_000, end_to_end_ms=7_440_000, attempts=3,
        detail="ValueError: [red]no[/red] such \x1b[31mcarrier", written=("delays: 5 rows",), tiers={"local": 4, "wal": 1},
        rerun=True, completed_ms=1_763_700_303_000, place="jobs.py:7 in process",
    ),
    entry(2, replay=1, scheduling_delay_ms=1, processing_ms=2, total_delay_ms=3),
    entry(3, "failing", detail="KeyError: 'x'", attempts=2),
    *(entry(number, "queued", attempts=0) for number in range(4, 30)),
)  # fmt: skip
RANGES = tuple(
    m.BatchRange(topic="<b>flights", partition=p, incarnation=1, from_offset=5, until_offset=15, records=9, bytes=90)
    for p in range(2)
)


class Listing:
    """An observer that lists ``BATCHES``, and keeps the queries."""

    def __init__(self) -> None:
        self.queries: list[BatchQuery] = []
        self._none = no_stream()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._none, name)

    def batches(self, query: BatchQuery) -> m.BatchesAnswer:
        self.queries.append(query)
        return list_batches(BATCHES, query)

    def batch(self, batch_id: int) -> m.BatchDetail:
        if batch_id != 2:
            raise RefusedError(f"batch {batch_id} is not listed", "not-found")
        return m.BatchDetail(batch=BATCHES[1], ranges=RANGES, tasks=(1, 1), block_ids=("r1-1-1", "r1-1-2"))


@pytest.fixture
def asked(project: Any) -> Iterator[list[BatchQuery]]:
    """Requests for pages that the driver got."""
    listing = Listing()
    routes = observer_routes(cast(Observer, listing), OPEN)
    with Server(application("driver", "0.1.0", routes), "http://127.0.0.1:0") as server:
        project.replace('url = "http://127.0.0.1:1"', f'url = "{server.url}"')
        yield listing.queries


def run(project: Any, *arguments: str) -> int:
    return main(["--config", str(project.config), "batches", *arguments])


def test_the_newest_batches_are_listed_with_their_delays(
    project: Any, asked: list[BatchQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, "--failed", "--since", "2025-11-21T04:40:00Z", "--text", "e") == 0
    assert asked == [BatchQuery(limit=20, failed=True, since_ms=1_763_700_000_000, text="e")]
    out = capsys.readouterr().out
    for part in (
        "85 ms",
        "1.2 s",
        "5 min 3 s",
        "2 h 4 min",
        "110 bytes",
        "last error: ValueError: [red]no[/red] such",
        "failing",
    ):
        assert part in out
    assert "\x1b" not in out, "an error is text, whatever it contains"
    assert out.index("KeyError") < out.index("ValueError"), "the newest first"


def test_more_batches_than_a_page_has_are_read_page_by_page(
    project: Any, asked: list[BatchQuery], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.commands.inspection.batches.PAGE", 10)
    assert run(project, "--last", "25", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [batch["number"] for batch in shown] == list(range(29, 4, -1))
    assert [query.limit for query in asked] == [10, 10, 10]
    assert run(project, "--json", "--last", "500") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(batch["number"], batch["replay"]) for batch in shown][-3:] == [(2, 1), (2, 0), (1, 0)]
    assert (shown[-1]["total_delay_ms"], shown[-1]["bytes"]) == (None, None)


def test_one_batch_is_shown_with_its_offsets_and_blocks(
    project: Any, asked: list[BatchQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, "2") == 0
    out = capsys.readouterr().out
    for part in ("Batch 2 (1099511627778)", "2025-11-21T04:45:03.000Z", "local 4, wal 1 (80 % local)", "<b>flights/1", "15",
                 "90 bytes", "delays: 5 rows", "jobs.py:7 in process", "r1-1-2", "1, 1"):  # fmt: skip
        assert part in out
    assert run(project, "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ranges"][0]["from"] == 5
    assert answer["batch"]["end_to_end_ms"] == 7_440_000


def test_a_batch_that_is_not_listed_is_an_error(
    project: Any, asked: list[BatchQuery], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project, "77") != 0
    assert capsys.readouterr().err == "forebay: batch 77 is not listed\n"


@pytest.mark.parametrize(
    ("milliseconds", "message"),
    [(None, "-"), (0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (119_949, "119.9 s"), (120_000, "2 min 0 s"),
     (7_199_999, "119 min 59 s"), (7_200_000, "2 h 0 min")],
)  # fmt: skip
def test_delays_are_shown_in_the_unit_that_fits(milliseconds: int | None, message: str) -> None:
    assert delay(milliseconds) == message
