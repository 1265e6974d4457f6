"""Valid and invalid requests, generated from the services' OpenAPI documents and sent to the real services."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import hypothesis
import msgspec
import pytest
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode

from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import ForebayError
from forebay.security.access import Access, ClientLimits
from tests.support.processes.service_process import HANG_SECONDS, TOKEN, Service, configured, running

# schemathesis warns of routes for which it finds no wrong input
pytestmark = pytest.mark.filterwarnings("ignore")

#: answers that are no fault though above 499: not ready, no room
MAY_FAIL = {503: "not-ready", 507: "no-room"}
#: of a service's memory; a third of the bytes that are sent
GROWTH_BYTES_MAX = 64_000_000


@pytest.fixture(params=["driver", "agent"])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> Iterator[Service]:
    topic = topic_name()
    mock_broker.create_topic(topic)
    with running(configured(tmp_path, [topic], mock_broker.address), request.param) as service:
        yield service


def send_to_every_route(url: str, examples: int) -> int:
    """Return the number of requests: for each route, at least one of each kind. Each is answered without a server error."""
    client = Client(url, access=Access(token=TOKEN))
    document = msgspec.json.decode(client.request("GET", "/v1/openapi.json"))
    client.close()
    document["paths"].pop("/v1/operator/stop", None)  # would be obeyed
    document["paths"].pop("/v1/events", None)  # its answer does not end
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
        operation: Any = cast(Any, result).ok()
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


def send_large_bodies(service: Service) -> int:
    """Return the bytes of all bodies: valid and invalid JSON of almost the maximum size, to every route that takes one."""
    document = msgspec.json.decode(service.ask("GET", "/v1/openapi.json"))
    padding = b"x" * (ClientLimits().request_bytes - 100)
    bodies = (b'{"padding": "' + padding + b'"}', b'"' + padding, padding)
    sent = 0
    for path, methods in document["paths"].items():
        for method in {"post", "put"} & methods.keys() if path != "/v1/operator/stop" else ():
            for body in bodies:
                with contextlib.suppress(ForebayError):
                    service.ask(method.upper(), re.sub(r"{[^}]*}", "x", path), body)
                sent += len(body)
    return sent


def require_bounded_memory(service: Service, send: Callable[[], object]) -> None:
    """INV-6: the service keeps neither the requests of ``send`` nor their bodies, which have far more bytes."""
    send_large_bodies(service)  # memory that it needs at first, and keeps for the next bodies
    before = service.memory_bytes()
    send()
    sent = 0
    while sent < 3 * GROWTH_BYTES_MAX:
        sent += send_large_bodies(service)
    grown = service.memory_bytes() - before
    print(f"{service.url}: {before / 1e6:.0f} MB before, {grown / 1e6:+.1f} MB after, {sent / 1e6:.0f} MB of bodies")
    assert grown < GROWTH_BYTES_MAX


def test_no_generated_request_causes_a_server_error(service: Service) -> None:
    """Afterwards the service works as before, and has kept none of them in memory."""
    require_bounded_memory(service, lambda: send_to_every_route(service.url, examples=2))
    assert service.ask("GET", "/v1/status")


@pytest.mark.long
def test_hundreds_of_generated_requests_cause_no_server_error(service: Service) -> None:
    require_bounded_memory(service, lambda: send_to_every_route(service.url, examples=500))
    assert service.ask("GET", "/v1/status")
