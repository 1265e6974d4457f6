"""The web page in a real browser, over a made-up driver with 1,000 partitions, 200 receivers and a day of batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from driver.listeners.events import BatchCompleted, BatchFailed
from forebay import messages as m
from tests.driver.web import canned
from tests.driver.web.conftest import TOKENS, Driver, Watched, busy

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

VIEWS = {
    "overview": "Falling behind by",
    "partitions": "Partitions",
    "receivers": "Receivers",
    "batches": "Batches",
    "blocks": "Blocks",
    "hosts": "Hosts",
    "wal": "Write-ahead log",
    "journal": "Journal",
    "cursors": "Cursors",
    "direct": "Direct streams",
    "events": "Events",
    "settings": "Settings in force",
}
BYTES_MAX, SECONDS_MAX = 300_000, 1.0
NEWEST = (1 << 40) + canned.BATCHES
FAILED = NEWEST + 1
Make = Callable[..., Driver]


def heading(page: Page, text: str) -> None:
    expect(page.locator("main h1")).to_contain_text(text)


def sign_in(page: Page, role: str) -> None:
    page.get_by_label("Token").fill(TOKENS[role])
    page.get_by_role("button", name="Sign in").click()


def count_bytes(sizes: list[int], page: Page) -> None:
    """Append the size of each part of an answer that the page receives."""
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.dataReceived", lambda event: sizes.append(event["encodedDataLength"]))


def test_first_view_of_a_large_stream_is_small_and_fast(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    measured = []
    for _ in range(3):  # the best one: the machine does other work, too
        sizes: list[int] = []
        page = watched.open(driver.url, prepare=partial(count_bytes, sizes))
        expect(page.get_by_role("heading", name="The way of a record")).to_be_visible()
        seconds = page.evaluate("performance.now()") / 1000
        expect(page.locator(".chart canvas").last).to_be_visible()
        expect(page.get_by_role("link", name="8,640", exact=True)).to_be_visible()
        assert 20_000 < sum(sizes) <= BYTES_MAX
        measured.append(seconds)
    assert min(measured) <= SECONDS_MAX * busy(), measured
    for view in ("partitions?sort=-position", "batches?sort=-records"):  # the longest lists
        sizes = []
        page = watched.open(driver.url, f"#/{view}", prepare=partial(count_bytes, sizes))
        expect(page.locator("tbody tr")).to_have_count(1_000)
        assert 20_000 < sum(sizes) <= BYTES_MAX, view


@pytest.mark.parametrize(("size", "theme"), [("wide", "light"), ("phone", "dark")])
def test_every_view_is_accessible_and_shows_hostile_names_as_text(
    size: str, theme: str, make_driver: Make, watched: Watched
) -> None:
    """In both widths and both themes: no violation of axe's rules, nothing wider than the window, no markup from outside."""
    world = canned.troubled()
    for rows in (world.partitions, world.receivers, world.batches, world.blocks):
        del rows[6:]  # axe checks each cell; further rows are of the same kind
    driver = make_driver(world)
    world.events.append(
        BatchFailed(time_ms=1, batch_id=1, number=1, output="", attempt=1, detail=canned.HOSTILE, final=False)
    )
    page = watched.open(driver.url, size=size, theme=theme)
    views = {
        **VIEWS,
        f"batches/{FAILED}": "Batch 8,641",
        "blocks/receiver-1-1-1?from=0&format=json": "Block receiver-1-1-1",
        f"receivers?open={canned.HOSTILE.replace('%', '%25')}": "Receivers",
        "nowhere": "Not found",
    }
    axe = Axe()
    for view, title in views.items():
        page.evaluate("view => { location.hash = '#/' + view }", view)
        heading(page, title)
        expect(page.locator("main")).not_to_contain_text("Loading…")
        found = axe.run(page)
        axe.axe_script = "axe.version"  # the page keeps axe until it is loaded again
        assert found.violations_count == 0, (view, found.generate_report())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.locator("main img, main script, [onerror]").count() == 0, view
        assert "pwned" not in page.title()
    for view in ("receivers", "partitions", f"blocks/{world.blocks[0].id}", "settings"):
        page.goto(f"{driver.url}/#/{view}")
        shown = page.get_by_text("<img src=x onerror=", exact=False).first
        expect(shown).to_be_visible()
        expect(shown).to_contain_text(r"\u202eevil")


def test_overview_says_what_needs_a_person_and_where_records_wait(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.troubled())
    page = watched.open(driver.url)
    heading(page, "Most wait in batches: the job is slower than the intake")
    problems = page.get_by_role("region", name="Needs a person")
    expect(problems.locator("li")).to_have_count(2)
    expect(problems.get_by_role("button", name="Copy: forebay batch retry")).to_be_visible()
    step = page.locator(".way li").nth(4)
    expect(step).to_have_class(re.compile("late"))
    expect(step).to_contain_text("Most wait here")
    for text in ("Batches", "6,012/s", "900,000", "5 min 12 s", "2 min 20 s"):
        expect(step).to_contain_text(text)
    expect(page.get_by_role("link", name="Spark's UI")).to_have_attribute("href", "http://127.0.0.1:4040")
    problems.get_by_role("link", name="job").click()
    expect(page).to_have_url(re.compile(r"#/batches\?failed=true"))
    heading(page, "Batches")  # the overview has two links to the batch
    page.get_by_role("link", name="8,641").click()
    heading(page, "Batch 8,641")
    error = page.get_by_role("region", name="Error")
    expect(error).to_contain_text("ValueError: can't parse")
    expect(error).to_contain_text("jobs.py:12 in process")


def test_page_follows_the_driver_live(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    page = watched.open(driver.url)
    heading(page, "Keeping up: 1,800 records")
    driver.world.overview = canned.replace_struct(driver.world.overview, lag_records=7_777)
    heading(page, "7,777 records")
    driver.world.receivers[1] = canned.receiver("receiver-1", silent_seconds=2.6)
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Receivers").click()
    expect(page.get_by_role("row", name=re.compile("^receiver-1 "))).to_contain_text("silent")
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Events").click()
    expect(page.get_by_text("Nothing has happened yet")).to_be_visible()
    driver.world.events.append(BatchCompleted(time_ms=1, batch_id=42, attempts=1))
    expect(page.locator(".events li")).to_contain_text("batch-completed batch_id 42 · attempts 1")
    charts = page.evaluate("history.back(), history.back()")
    assert charts is None
    page.get_by_role("button", name="24 h").click()
    expect(page.locator(".chart canvas")).to_have_count(4)
    expect(page).to_have_url(re.compile("range=24"))


def test_data_stay_readable_while_the_driver_is_down(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    page = watched.open(driver.url, "#/partitions")
    row = page.get_by_role("row", name=re.compile("^flights.0 "))
    expect(row).to_be_visible()
    driver.stop()
    offline = page.locator(".offline")
    expect(offline).to_contain_text("Not live")
    expect(offline).to_contain_text("The data below is old.")
    expect(offline).to_contain_text(re.compile(r"Its age is \d+ s"))
    expect(row).to_be_visible()
    driver.start()
    page.get_by_role("button", name="Try now").click()
    expect(offline).to_have_count(0)
    watched.expected("ERR_")


def test_page_asks_a_driver_that_is_down_after_growing_delays(make_driver: Make, watched: Watched) -> None:
    """Fake time: in five minutes without a driver, the page asks about a dozen times, not hundreds."""
    driver = make_driver(canned.healthy())
    page = watched.open(driver.url, prepare=lambda page: page.clock.install())
    heading(page, "Keeping up")
    asked: list[str] = []
    page.route("**/v1/overview", lambda route: (asked.append(route.request.url), route.abort())[1])
    driver.stop()
    expect(page.locator(".offline")).to_be_visible()
    for _ in range(60):
        page.clock.run_for(5_000)
    assert 8 <= len(asked) <= 20, len(asked)
    watched.expected("ERR_")


def test_sign_in_keeps_the_token_in_its_tab_and_out_of_every_address(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy(), guarded=True)
    page = watched.open(driver.url, "#/partitions")
    heading(page, "Sign in")
    page.get_by_label("Token").fill("not-a-token-of-this-driver")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The driver does not know this token.")
    sign_in(page, "receiver")
    expect(page.get_by_role("alert")).to_contain_text(
        "This token has the role receiver. The page needs reader or operator."
    )
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    sign_in(page, "reader")
    heading(page, "Partitions")  # the view that the address named
    page.reload()
    heading(page, "Partitions")
    assert urls and not any(TOKENS["reader"] in url for url in urls)
    assert TOKENS["reader"] not in page.url
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    other = watched.tab(page.context, driver.url)
    heading(other, "Sign in")
    page.get_by_role("button", name="Sign out").click()
    heading(page, "Sign in")
    page.reload()
    heading(page, "Sign in")
    watched.expected("401")


def test_only_operators_act_and_others_see_why_not(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy(), guarded=True)
    page = watched.open(driver.url)
    sign_in(page, "reader")
    page.get_by_role("button", name="Pause batches…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("This needs the role operator. Your token has the role reader.")
    expect(dialog.get_by_role("textbox")).to_have_count(0)
    dialog.get_by_role("button", name="Close").click()
    page.goto(f"{driver.url}/#/blocks/receiver-1-1-1?from=0")
    expect(page.get_by_text("this needs a token with the role query or operator")).to_be_visible()
    expect(page.locator(".record")).to_have_count(0)
    assert driver.world.asked == []
    watched.expected("401")  # before the sign-in; the page does not ask for the records


CAUSE = "maintenance by ana"
#: view, name of the button, what is typed to confirm, the request, and further fields
ACTS: list[tuple[str, str, str, m.Message, dict[str, str]]] = [
    ("#/overview", "Drain and stop", "flights", m.StopRequest(drain=True, timeout_seconds=60, cause=CAUSE), {"Stop after": "60"}),
    ("#/overview", "Retry failed batches", "flights", m.RetryRequest(cause=CAUSE), {}),
    (f"#/batches/{NEWEST}", "Replay from here", str(NEWEST), m.ReplayRequest(batch=NEWEST, cause=CAUSE), {}),
    ("#/cursors?open=daily-report", "Drop cursor", "daily-report", m.DropCursorRequest(cursor="daily-report", cause=CAUSE), {}),
    ("#/hosts?open=host-2", "Forget", "host-2", m.ForgetRequest(name="host-2", cause=CAUSE), {}),
    (
        "#/partitions?open=flights%2F3", "Fence receiver", "receiver-3",
        m.FenceRequest(topic="flights", partition=3, receiver_id="receiver-3", cause=CAUSE), {},
    ),
]  # fmt: skip


def test_actions_ask_for_a_reason_and_a_typed_confirmation(make_driver: Make, watched: Watched) -> None:
    """Each sends the request that its button names, and nothing before it is confirmed."""
    driver = make_driver(canned.healthy(), guarded=True)
    page = watched.open(driver.url)
    sign_in(page, "operator")
    heading(page, "Keeping up")
    watched.expected("401")
    for view, name, target, request, fields in ACTS:
        page.goto(f"{driver.url}/{view}")
        page.get_by_role("button", name=f"{name}…").click()
        dialog = page.get_by_role("dialog")
        submit = dialog.get_by_role("button", name=name)
        for label, value in fields.items():
            dialog.get_by_label(label).fill(value)
        expect(submit).to_be_disabled()
        dialog.get_by_label("Reason").fill(CAUSE)
        dialog.get_by_label("Type").fill(target[:-1])
        expect(submit).to_be_disabled()
        assert driver.world.asked == []
        dialog.get_by_label("Type").fill(target)
        submit.click()
        expect(dialog.get_by_role("status").filter(has_text=f"done: {type(request).__name__}")).to_be_visible()
        assert driver.world.asked == [request]
        driver.world.asked.clear()
        dialog.get_by_role("button", name="Close").click()
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_reset_shows_its_plan_before_it_is_done(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    page = watched.open(driver.url, "#/partitions?open=flights%2F0")
    page.get_by_role("button", name="Reset offsets…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("wrong data")
    dialog.get_by_label("Type").fill("flights/0")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_text("flights/0: position 518400, new incarnation 2 begins at 12000")).to_be_visible()
    plan = m.ResetRequest(topic="flights", partition=0, to="earliest", cause="wrong data")
    assert driver.world.asked == [plan]
    dialog.get_by_role("button", name="Reset offsets").click()
    expect(dialog.get_by_role("status").filter(has_text="Done.")).to_be_visible()
    assert driver.world.asked == [plan, msgspec.structs.replace(plan, apply=True)]


def test_refused_action_shows_the_reason_and_a_pause_shows_everywhere(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    driver.world.refusal = "a drain is under way: wait for its end"
    page = watched.open(driver.url)
    page.get_by_role("button", name="Pause batches…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("upgrade of the sink")
    dialog.get_by_label("Type").fill("flights")
    dialog.get_by_role("button", name="Pause batches").click()
    expect(dialog.get_by_role("alert")).to_have_text(driver.world.refusal)
    watched.expected("409")
    driver.world.refusal = ""
    dialog.get_by_role("button", name="Pause batches").click()
    dialog.get_by_role("button", name="Close").click()
    heading(page, "Paused: the driver begins no batch: upgrade of the sink")
    expect(page.get_by_role("button", name="Resume batches…")).to_be_visible()


def test_lists_have_filters_order_and_pages_with_addresses(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.troubled())
    page = watched.open(driver.url, "#/partitions")
    expect(page.get_by_text("100 shown of 1,000")).to_be_visible()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("row", name=re.compile("^flights.100 "))).to_be_visible()
    page.reload()
    expect(page.get_by_role("row", name=re.compile("^flights.100 "))).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Position").click()
    expect(page.get_by_text("1,000 shown of 1,000")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Position")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tbody tr").first).to_contain_text("flights/999")
    page.get_by_label("State").select_option("trouble")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody button").click()
    expect(page.locator("tr.detail")).to_contain_text("Kafka lost")
    expect(page.get_by_role("button", name="Accept gap…")).to_be_visible()
    page.goto(f"{driver.url}/#/receivers")
    page.get_by_label("Id contains").fill("no such receiver")
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.get_by_text("100 shown of 200")).to_be_visible()


def test_records_are_shown_as_text_json_and_hex(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    page = watched.open(driver.url, "#/blocks/receiver-1-1-1")
    expect(page.locator(".record")).to_have_count(0)  # read only when asked for
    page.get_by_role("button", name="Show records").click()
    first, third = page.locator(".record").nth(0), page.locator(".record").nth(2)
    expect(first).to_contain_text(
        '{"carrier": "UA", "delay": 0, "id": 1234567890123456789, "note": "<script>alert(1)</script>"}'
    )
    expect(third).to_contain_text(r"\u0000\u0001")
    expect(page.locator(".record").nth(3)).to_contain_text("null")
    page.get_by_role("button", name="JSON").click()
    expect(first.locator("pre").nth(1)).to_have_text(
        '{\n  "carrier": "UA",\n  "delay": 0,\n  "id": 1234567890123456789,\n  "note": "<script>alert(1)</script>"\n}'
    )
    expect(third).to_contain_text("not JSON")
    page.get_by_role("button", name="hex").click()
    expect(third).to_contain_text("000000  00 01 ff fe 20 62 69 6e 61 72 79")
    expect(page.get_by_text("1 to 20 of 5,000, read from wal")).to_be_visible()


def test_page_works_by_keyboard_alone(make_driver: Make, watched: Watched) -> None:
    driver = make_driver(canned.healthy())
    page = watched.open(driver.url)
    heading(page, "Keeping up")

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            label = page.evaluate(
                "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
            )
            if label.strip() == name:
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"the focus on {name} is not visible"
                return
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("Skip to the content")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.reload()
    heading(page, "Keeping up")
    tab_to("Receivers")
    page.keyboard.press("Enter")
    heading(page, "Receivers")
    assert page.evaluate("document.activeElement.textContent") == "Receivers"
    tab_to("Records")
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="Records")).to_have_attribute("aria-sort", "descending")
    tab_to("receiver-0")
    page.keyboard.press("Enter")
    tab_to("Restart receiver…")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "Restart receiver…", "the focus goes back"
    page.keyboard.press("Enter")
    page.get_by_label("Reason").focus()
    page.keyboard.type("stuck")
    page.keyboard.press("Tab")
    page.keyboard.type("receiver-0")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("done: RestartReceiverRequest")
    assert driver.world.asked == [m.RestartReceiverRequest(receiver_id="receiver-0", cause="stuck")]


def test_standby_names_the_driver_that_leads(make_driver: Make, watched: Watched) -> None:
    world = canned.healthy()
    world.overview = m.OverviewAnswer(
        time_ms=0, stream="flights", release="0.1.0", state="standby", leader="http://10.0.0.9:7080"
    )
    page = watched.open(make_driver(world).url)
    heading(page, "Standby: this driver takes over if the driver that leads ends.")
    expect(page.locator("main").get_by_role("link")).to_have_attribute("href", "http://10.0.0.9:7080")
    expect(page.get_by_role("banner")).to_contain_text("standby")


def test_empty_stream_says_what_to_do_next(make_driver: Make, watched: Watched) -> None:
    world = canned.World(canned.replace_struct(canned.healthy().overview, last_batch=None, batches={}, receivers={}))
    page = watched.open(make_driver(world).url)
    expect(page.get_by_text("No batch yet.")).to_be_visible()
    advice = {
        "partitions": "forebay up",
        "receivers": "forebay receiver",
        "hosts": "forebay agent",
        "blocks": "produce some",
        "cursors": "readStream",
    }
    for view, text in advice.items():
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        expect(page.locator(".empty")).to_contain_text(text)


def test_theme_is_kept(make_driver: Make, watched: Watched) -> None:
    page = watched.open(make_driver(canned.healthy()).url)

    def ground() -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert ground() != light
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert ground() != light
