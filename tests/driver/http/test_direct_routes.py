"""The short way of hot messages answers just as the framework's own routes do."""

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

REPORT = m.ReportRequest(receiver_id="r", epoch=1, blocks=())


class Decided:
    """Every request meets ``outcome``: an answer, or an error."""

    def __init__(self) -> None:
        self.outcome: Any = None
        self.requests: list[Any] = []

    def submit(self, request: Any) -> Future[Any]:
        self.requests.append(request)
        future: Future[Any] = Future()
        if isinstance(self.outcome, Exception):
            future.set_exception(self.outcome)
        else:
            future.set_result(self.outcome)
        return future


@pytest.fixture
def decided() -> Decided:
    return Decided()


@pytest.fixture
def url(decided: Decided) -> Iterator[str]:
    app = tracker_application(decided.submit, status=lambda: decided.submit(None), ready=lambda: None, release="test")
    with Server(app, "http://127.0.0.1:0") as server:
        yield server.url


def test_a_report_is_decided_once_and_answered_on_both_ways_alike(decided: Decided, url: str) -> None:
    """A body of unknown length goes through the framework, one with its length does not."""
    decided.outcome = m.ReportAnswer(results=(m.BlockResult(block_id="b", accepted=True),))
    body = msgspec.json.encode(REPORT)
    json = {"content-type": "application/json"}
    chunked = {**json, "transfer-encoding": "chunked"}
    direct = urllib3.request("POST", url + "/v1/blocks/report", body=body, headers=json, retries=False)
    framework = urllib3.request("POST", url + "/v1/blocks/report", body=iter([body]), headers=chunked, retries=False)
    assert decided.requests == [REPORT, REPORT]
    assert (direct.status, direct.data) == (framework.status, framework.data)
    assert direct.headers["content-type"] == framework.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "refusal",
    [FencedError("superseded"), RefusedError("no", "conflict"), UsageError("wrong"), UnreachableError("stopping")],
)
def test_a_refused_report_arrives_as_the_error_it_was(decided: Decided, url: str, refusal: Exception) -> None:
    decided.outcome = refusal
    with pytest.raises(type(refusal), match=str(refusal)):
        Client(url).post("/v1/blocks/report", REPORT, m.ReportAnswer)


def test_a_body_that_is_no_report_is_refused_by_the_framework_with_the_field(decided: Decided, url: str) -> None:
    with pytest.raises(UsageError, match="epoch"):
        Client(url).request("POST", "/v1/blocks/report", b'{"receiver_id": "r", "epoch": "x", "blocks": []}')
    assert not decided.requests
