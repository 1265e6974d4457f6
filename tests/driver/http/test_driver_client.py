"""One client for all drivers of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar import get, post

from forebay import messages as m
from forebay.http.application import application
from forebay.http.driver_client import DriverClient
from forebay.http.server import Server
from forebay.model.errors import FencedError, NotTakenError, UnreachableError


class Played:
    """A driver whose answer is ``does``: "lead", "stand by", or an error to raise."""

    def __init__(self) -> None:
        self.does: Any = "lead"
        self.asked = 0

        @get("/v1/health")
        async def health() -> m.OperatorAnswer:
            return await stop.fn()  # type: ignore[no-any-return]

        @post("/v1/operator/stop", status_code=200)
        async def stop() -> m.OperatorAnswer:
            self.asked += 1
            if self.does == "stand by":
                raise NotTakenError("standby: another driver leads", "http://leader")
            if isinstance(self.does, Exception):
                raise self.does
            return m.OperatorAnswer(message=self.server.url)

        self.server = Server(application("played", "0", [stop, health]), "http://127.0.0.1:0")


@pytest.fixture
def drivers() -> Iterator[tuple[Played, Played]]:
    first, second = Played(), Played()
    with first.server, second.server:
        yield first, second


def ask(client: DriverClient) -> str:
    return client.post("/v1/operator/stop", m.StopRequest(), m.OperatorAnswer).message


def test_the_one_that_leads_is_found_and_kept(drivers: tuple[Played, Played]) -> None:
    first, second = drivers
    first.does = "stand by"
    client = DriverClient([first.server.url, second.server.url])
    assert [ask(client), ask(client)] == [second.server.url] * 2
    assert first.asked == 1 and client.url == second.server.url
    first.does, second.does = "lead", "stand by"
    assert ask(client) == first.server.url
    client.close()


def test_driver_that_does_not_answer_is_skipped_immediately(drivers: tuple[Played, Played]) -> None:
    first, _ = drivers
    with Server(application("gone", "0", []), "http://127.0.0.1:0") as gone:
        url = gone.url
    client = DriverClient([url, first.server.url])
    assert ask(client) == first.server.url
    client.close()


def test_a_request_that_may_have_been_taken_goes_nowhere_else_by_itself(drivers: tuple[Played, Played]) -> None:
    """Who sent it decides what is said to the next driver: an acknowledgement is of one driver's commands."""
    first, second = drivers
    first.does = UnreachableError("the driver is stopping")
    client = DriverClient([first.server.url, second.server.url])
    with pytest.raises(UnreachableError, match="stopping"):
        ask(client)
    assert second.asked == 0
    assert ask(client) == second.server.url  # the next request
    client.close()


def test_an_answer_that_is_a_refusal_is_the_leaders_word(drivers: tuple[Played, Played]) -> None:
    first, second = drivers
    first.does = FencedError("superseded")
    client = DriverClient([first.server.url, second.server.url])
    with pytest.raises(FencedError):
        ask(client)
    assert second.asked == 0 and client.url == first.server.url
    client.close()


def test_without_a_leader_the_error_has_each_drivers_answer(drivers: tuple[Played, Played]) -> None:
    first, second = drivers
    first.does = second.does = "stand by"
    client = DriverClient([first.server.url, second.server.url])
    with pytest.raises(UnreachableError, match="no leading driver") as refused:
        ask(client)
    assert first.server.url in str(refused.value) and second.server.url in str(refused.value)
    assert (first.asked, second.asked) == (1, 1)  # once round
    client.close()


def test_a_read_that_got_no_answer_is_asked_of_the_next_one(drivers: tuple[Played, Played]) -> None:
    """A person's tool meets a driver that is paused."""
    first, second = drivers
    first.does = UnreachableError("no answer in time")
    client = DriverClient([first.server.url, second.server.url])
    assert client.get("/v1/health", m.OperatorAnswer).message == second.server.url
    client.close()
