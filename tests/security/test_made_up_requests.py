"""Requests made up from the services' own documents, fitting and not, sent to the real services."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode

from driver import IngestContext
from executor_agent.main import Agent
from forebay import messages as m
from forebay.access import Access
from forebay.http import Client
from forebay.kafka.broker import MockBroker
from forebay.settings import Settings, from_values
from tests.support.guarded import settings as guarded

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore")

TOKEN = "a-token-of-all-roles"
#: longer than any answer takes; a hang is a failure
HANG_SECONDS = 60.0
#: answers that are no fault though above 499: not ready, no room
MAY_FAIL = {503: "not-ready", 507: "no-room"}


@contextlib.contextmanager
def driver(folder: Path, broker: MockBroker, topic: str) -> Iterator[str]:
    broker.create_topic(topic)
    settings: Settings = from_values(
        {
            "stream": "s",
            "kafka": {"topics": [topic], "group": topic, **broker.options},
            "wal": {"url": f"file://{folder}/wal"},
            "driver": {
                "journal": f"file://{folder}/journal",
                "url": "http://127.0.0.1:0",
                "engine": "local",
                "lease_duration": "2s",
            },
            "agent": {"blocks": f"{folder}/blocks"},
            "security": {"token_file": str(folder / "tokens")},
        }
    )
    with IngestContext(None, settings) as intake:
        intake.foreach_batch(lambda batch: None)
        yield intake.url


@pytest.fixture(params=["driver", "agent"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> Iterator[str]:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKEN + "\n")
    if request.param == "driver":
        with driver(tmp_path, mock_broker, topic_name()) as url:
            yield url
    else:
        with Agent(guarded(tmp_path, token_file=str(tokens))) as agent:
            yield agent.url


def send_to_every_route(url: str, examples: int) -> int:
    """How many were sent, of each route and of either kind at least one. Each is answered, and none by a fault of the service."""
    client = Client(url, access=Access(token=TOKEN))
    document = msgspec.json.decode(client.request("GET", "/v1/openapi.json"))
    client.close()
    document["paths"].pop("/v1/operator/stop", None)  # would be obeyed
    schema = schemathesis.openapi.from_dict(document)
    sent: list[tuple[str, int]] = []

    def ask(case: Any) -> None:
        answer = case.call(
            base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=HANG_SECONDS, allow_redirects=False
        )
        sent.append((case.operation.path, answer.status_code))
        if answer.status_code >= 500:
            refusal = msgspec.json.decode(answer.content, type=m.Refusal)
            assert MAY_FAIL.get(answer.status_code) == refusal.code, f"{case.as_curl_command()}: {answer.text}"
        assert answer.status_code not in (401, 403), case.as_curl_command()

    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            check = given(case=operation.as_strategy(generation_mode=mode))(ask)
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # a route that takes nothing has no wrong input
                hypothesis.settings(
                    max_examples=examples,
                    deadline=None,
                    derandomize=examples < 20,
                    database=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                    phases=[hypothesis.Phase.generate],
                )(check)()
    assert {path for path, _ in sent} == set(document["paths"])
    return len(sent)


def test_no_request_made_up_from_the_documents_is_a_services_fault(url: str) -> None:
    """And the service is as well as before: neither what fits nor what does not has stopped it."""
    assert send_to_every_route(url, examples=4) > 0
    assert Client(url, access=Access(token=TOKEN)).request("GET", "/v1/status")


@pytest.mark.long
def test_hundreds_of_requests_to_each_route_are_no_services_fault(url: str) -> None:
    assert send_to_every_route(url, examples=500) > 500
    assert Client(url, access=Access(token=TOKEN)).request("GET", "/v1/status")
