"""The web page of a running stream: a real driver, agent and receivers, over a broker, in a real browser.

The tests share one stream, and follow one another.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from forebay.kafka.embedded.broker import KafkaBroker
from tests.driver.web import canned
from tests.driver.web.conftest import SIZES, TOKENS, Watched, busy, takes_pictures
from tests.driver.web.test_page import heading, sign_in
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

# a server's thread leaves its loop's sockets to the collector
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC = "departures"
HEARTBEAT_SECONDS = 1.0


@pytest.fixture(scope="module")
def stream_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the stream's files. If pictures are taken, which show its path, it is one that names no test."""
    if not takes_pictures():
        yield tmp_path_factory.mktemp("stream")
        return
    folder = Path(tempfile.gettempdir(), TOPIC)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def stream(stream_folder: Path, kafka_broker: KafkaBroker) -> Iterator[Cluster]:
    """Two receivers, with records that flow all the time, and tokens."""
    tokens = stream_folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("the-token-of-all-roles\n" + "".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    kafka_broker.create_topic(TOPIC)
    heartbeat = {"heartbeat_interval": f"{HEARTBEAT_SECONDS:g}s"}
    with (
        Cluster(
            stream_folder,
            kafka_broker.options,
            [TOPIC],
            kafka={} if takes_pictures() else {"group": f"{TOPIC}-{os.getpid()}-1"},
            receiver=heartbeat,
            agent=heartbeat,
            driver={"batch_interval": "1s", "job_max_failures": 1},
            security={"token_file": str(tokens)},
            wal={"retention": "1h", "segment_size": "1MB"},
        ) as cluster,
        Flow(kafka_broker.options, TOPIC, rate=1200),
    ):
        cluster.await_records(400)
        yield cluster


def signed_in(watched: Watched, stream: Cluster, view: str = "", role: str = "operator") -> Page:
    page = watched.open(stream.driver_url, view)
    sign_in(page, role)
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    watched.expected("401")
    return page


def act(page: Page, name: str, target: str) -> None:
    """Do an action, and close its dialog when the driver has answered."""
    page.get_by_role("button", name=f"{name}…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("a test")
    dialog.get_by_label("Type").fill(target)
    dialog.get_by_role("button", name=name).click()
    expect(dialog.locator(".done")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()


def await_more(stream: Cluster) -> None:
    """Wait until batches with new records are completed, as before a process was killed."""
    status = stream.wait(stream.status, "the driver's status")
    stream.await_records(status.records_completed + 400)


def test_every_view_shows_the_running_stream(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream)
    heading(page, "Keeping up")
    expect(page.get_by_text("Nothing needs a person.")).to_be_visible()
    steps = page.locator(".way li")
    expect(steps.locator(".step")).to_have_text(["Kafka", "Blocks", "WAL", "Tracker", "Batches", "Committed"])
    expect(steps.first.locator(".rate")).to_have_text(re.compile(r"^[1-9][0-9,]*/s$"))
    shown = {
        "Partitions": f"{TOPIC}/3",
        "Receivers": "r2",
        "Batches": "completed",
        "Blocks": "completed",
        "Hosts": "active",
        "WAL": f"{stream.folder}/wal",
        "Journal": f"{stream.folder}/journal",
        "Cursors": "No query reads over this intake",
        "Direct streams": "No direct stream",
        "Events": "batch-completed",
        "Settings": "driver.batch_interval",
    }
    for view, text in shown.items():
        page.get_by_role("navigation", name="Views").get_by_role("link", name=view, exact=True).click()
        expect(page.locator("main :is(table, .facts, .empty, .events)").first).to_be_visible()
        expect(page.locator("main :is(tbody, .facts, .empty, .events)").filter(has_text=text).first).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("the-token-of")


def test_numbers_follow_the_stream_live(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream)
    completed = page.locator(".tile", has_text=re.compile("^Completed")).locator("b")
    before = completed.inner_text()
    expect(completed).not_to_have_text(before)
    newest = page.get_by_role("region", name="Newest batches").get_by_role("row").nth(1)
    number = newest.get_by_role("rowheader").inner_text()
    expect(newest.get_by_role("rowheader")).not_to_have_text(number)
    expect(page.locator(".chart canvas").last).to_be_visible()
    if takes_pictures():  # charts of a few points show nothing
        stream.wait(lambda: (found := stream.status()) and found.batches_completed >= 100, "a hundred batches", 200)
        page.reload()
        expect(page.locator(".chart canvas").last).to_be_visible()
    watched.shoot(page, "overview")
    page.set_viewport_size(SIZES["phone"])
    page.emulate_media(color_scheme="dark")
    watched.shoot(page, "phone")


def test_batch_leads_to_its_blocks_and_their_records(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream, "#/batches?state=completed")
    row = page.locator("tbody tr").first
    expect(row).to_contain_text(re.compile(r"\d+ ms"))
    row.get_by_role("link").click()
    heading(page, "completed")
    watched.shoot(page, "batch")
    for fact in ("scheduling delay", "processing", "total delay", "end to end", "tiers read"):
        expect(page.locator(".facts > div", has=page.get_by_text(fact, exact=True))).not_to_contain_text("–")
    expect(page.get_by_role("region", name="Ranges")).to_contain_text(f"{TOPIC}/")
    page.locator(".links a").first.click()
    heading(page, "Block ")
    page.get_by_role("button", name="Show records").click()
    expect(page.locator(".record").first).to_contain_text(re.compile(r"value.*\d+ \.\.\.", re.DOTALL))
    watched.shoot(page, "records")
    page.get_by_role("button", name="hex").click()
    expect(page.locator(".record").first).to_contain_text("000000  ")


def test_killed_receiver_is_shown_within_two_heartbeats(stream: Cluster, watched: Watched) -> None:
    """Two heartbeats that are missing, and the second until the next overview."""
    page = signed_in(watched, stream, "#/receivers")
    row = page.get_by_role("row", name=re.compile("^r1 "))
    expect(row).to_contain_text("active")
    stream.kill9("r1")
    expect(row).to_contain_text("silent", timeout=(2 * HEARTBEAT_SECONDS + 2) * 1000 * busy())
    watched.shoot(page, "receivers")
    page.get_by_role("link", name="Forebay", exact=True).click()
    expect(page.locator(".tile", has_text=re.compile("^Receivers"))).to_contain_text(re.compile(r"1\s*(silent|lost)"))
    page.go_back()
    stream.restart("r1")
    expect(row).to_contain_text(re.compile("active|waiting"))  # the other one may have its partitions now
    await_more(stream)


def test_failing_job_is_shown_with_its_error_and_repaired(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream)
    (stream.folder / "fail").touch()
    problems = page.get_by_role("region", name="Needs a person")
    expect(problems).to_contain_text("failing on request")
    expect(page.get_by_role("link", name="failed", exact=False).first).to_be_visible()
    problems.get_by_role("link", name="job").click()
    page.locator("tbody").get_by_role("link").first.click()
    error = page.get_by_role("region", name="Error")
    expect(error).to_contain_text("RuntimeError: failing on request")
    expect(error).to_contain_text("jobs.py")
    watched.shoot(page, "problem")
    (stream.folder / "fail").unlink()
    act(page, "Retry failed batches", "stream")
    expect(page.locator("main h1")).to_contain_text("completed")
    page.get_by_role("link", name="Forebay", exact=True).click()
    expect(page.get_by_text("Nothing needs a person.")).to_be_visible()


def test_pause_and_resume_by_an_operator(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream)
    act(page, "Pause batches", "stream")
    heading(page, "Paused")
    act(page, "Resume batches", "stream")
    expect(page.locator("main h1")).not_to_contain_text("Paused")


def test_restart_of_a_receiver_by_an_operator(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream, "#/receivers?open=r2")
    act(page, "Restart receiver", "r2")
    assert stream.await_end("r2") is not None
    assert "an operator asked for: restart receiver receiver_id=r2 cause=" in stream.log("driver")
    stream.restart("r2")
    expect(page.get_by_role("row", name=re.compile("^r2 "))).to_contain_text("active")


def test_driver_that_is_killed_leaves_the_page_readable(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream, "#/partitions")
    row = page.get_by_role("row", name=re.compile(f"^{TOPIC}.0 "))
    expect(row).to_be_visible()
    stream.kill9("driver")
    offline = page.locator(".offline")
    expect(offline).to_contain_text("The data below is old.")
    expect(row).to_be_visible()
    stream.restart("driver")
    expect(offline).to_have_count(0)  # by itself
    expect(row).to_contain_text("active")
    await_more(stream)
    watched.errors[:] = [error for error in watched.errors if "net::ERR_" not in error]  # a refused connection


def test_reader_sees_no_records_and_does_not_act(stream: Cluster, watched: Watched) -> None:
    page = signed_in(watched, stream, "#/blocks", "reader")
    page.locator("tbody a").first.click()
    expect(page.get_by_text("this needs a token with the role query or operator")).to_be_visible()
    page.get_by_role("link", name="Forebay", exact=True).click()
    page.get_by_role("button", name="Stop now…").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("This needs the role operator.")
    assert stream.status() is not None


def test_hostile_values_are_text(stream: Cluster, watched: Watched, kafka_broker: KafkaBroker) -> None:
    from confluent_kafka import Producer

    producer = Producer(kafka_broker.options)
    producer.produce(TOPIC, canned.HOSTILE.encode(), b"<b>key</b>", 0)
    assert producer.flush(30) == 0
    page = signed_in(watched, stream, f"#/blocks?topic={TOPIC}&partition=0")
    expect(page.locator("tbody tr").first).to_be_visible()
    assert "pwned" not in page.title()
