"""The tracker's HTTP side: documented from the code, refusals with a message, bodies with a bound."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
import urllib3

from driver.http.api import tracker_application
from forebay import messages as m
from forebay.http.client import Client
from forebay.http.server import Server
from forebay.model.errors import FencedError, RefusedError, UnreachableError, UsageError
from forebay.security.access import ClientLimits
from tests.support.state.observed import no_stream


def failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


@pytest.fixture
def answers() -> list[Exception]:
    """What the next request is refused with."""
    return []


@pytest.fixture
def url(answers: list[Exception]) -> Iterator[str]:
    app = tracker_application(
        lambda request: failed(answers.pop()),
        status=lambda: failed(UnreachableError("starting")),
        ready=lambda: "starting",
        release="test",
        observer=no_stream(),
    )
    with Server(app, "http://127.0.0.1:0") as server:
        yield server.url


LOOKUP = m.LookupRequest(receiver_id="r", epoch=1, partitions=())


def test_the_openapi_document_names_every_route_with_its_messages(url: str) -> None:
    document = msgspec.json.decode(Client(url).request("GET", "/v1/openapi.json"))
    assert set(document["paths"]) == {
        "/v1/receivers/register",
        "/v1/receivers/heartbeat",
        "/v1/partitions/look",
        "/v1/partitions/claim",
        "/v1/partitions/release",
        "/v1/partitions/trouble",
        "/v1/blocks/report",
        "/v1/agents/heartbeat",
        "/v1/cursors/intake",
        "/v1/cursors/open",
        "/v1/cursors/move",
        "/v1/cursors/close",
        "/v1/cursors/earliest",
        "/v1/cursors/times",
        "/v1/cursors/blocks",
        "/v1/cursors/span",
        "/v1/operator/pause",
        "/v1/operator/restart-receiver",
        "/v1/operator/skip",
        "/v1/operator/drop-cursor",
        "/v1/operator/accept-gap",
        "/v1/operator/accept-loss",
        "/v1/operator/replay",
        "/v1/operator/fence",
        "/v1/operator/reset",
        "/v1/operator/forget",
        "/v1/operator/retry",
        "/v1/operator/stop",
        "/v1/status",
        "/v1/lag",
        "/v1/health",
        "/v1/overview",
        "/v1/threads",
        "/v1/series",
        "/v1/caller",
        "/v1/partitions",
        "/v1/receivers",
        "/v1/hosts",
        "/v1/cursors",
        "/v1/direct",
        "/v1/listeners",
        "/v1/batches",
        "/v1/batches/{batch_id}",
        "/v1/blocks",
        "/v1/blocks/{block_id}",
        "/v1/blocks/{block_id}/records",
        "/v1/states",
        "/v1/wal",
        "/v1/journal",
        "/v1/settings",
        "/v1/events",
    }
    body = document["paths"]["/v1/blocks/report"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["$ref"].endswith("ReportRequest")


@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (FencedError("superseded"), FencedError),
        (RefusedError("no", "conflict"), RefusedError),
        (UsageError("wrong"), UsageError),
        (UnreachableError("stopping"), UnreachableError),
    ],
)
def test_a_refusal_arrives_as_the_error_it_was_with_its_message(
    url: str, answers: list[Exception], refusal: Exception, raised: type[Exception]
) -> None:
    answers.append(refusal)
    with pytest.raises(raised, match=str(refusal)):
        Client(url).post("/v1/partitions/look", LOOKUP, m.LookupAnswer)


def test_a_body_that_is_no_such_message_is_refused_with_the_field(url: str) -> None:
    with pytest.raises(UsageError, match="epoch"):
        Client(url).request("POST", "/v1/partitions/look", b'{"receiver_id": "r", "epoch": "x", "partitions": []}')


def test_a_body_beyond_the_limit_is_refused(url: str) -> None:
    """INV-6."""
    body, headers = b" " * (ClientLimits().request_bytes + 1), {"content-type": "application/json"}
    answer = urllib3.request("POST", url + "/v1/blocks/report", body=body, headers=headers, retries=False)
    assert answer.status == 413


def test_an_unknown_route_is_refused_with_a_message(url: str) -> None:
    with pytest.raises(RefusedError):
        Client(url).request("GET", "/v1/nothing")


def test_not_ready_says_for_what(url: str) -> None:
    with pytest.raises(UnreachableError, match="starting"):
        Client(url).get("/v1/health", m.Done)


def test_a_receiver_with_an_id_of_the_drivers_own_is_refused_whatever_it_says(url: str) -> None:
    """INV-4: its epoch is no secret, and adoption acts under it."""
    register = m.RegisterRequest(stream="s", receiver_id="forebay-adoption", host="h", instance_id="i", release="1")
    report = m.ReportRequest(receiver_id="forebay-adoption", epoch=1, blocks=())
    for path, body, answer in (
        ("/v1/receivers/register", register, m.RegisterAnswer),
        ("/v1/blocks/report", report, m.ReportAnswer),
    ):
        with pytest.raises(UsageError, match="begin with 'forebay-' are the driver's own"):
            Client(url).post(path, body, answer)
