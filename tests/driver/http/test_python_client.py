"""The token that the Python client sends, and what it raises without one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from driver.http.api import tracker_application
from forebay.client import Client
from forebay.http.server import Server
from forebay.model.errors import AccessError, UnreachableError
from forebay.security.access import Guard
from tests.support.state.guarded import settings
from tests.support.state.observed import no_stream

READER, OPERATOR = "the-token-of-a-reader", "the-token-of-an-operator"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text(f"reader {READER}\noperator {OPERATOR}\n")
    return file


@pytest.fixture
def url(tmp_path: Path, tokens: Path) -> Iterator[str]:
    def nothing(*_: Any) -> Future[Any]:
        return Future()

    guard = Guard(settings(tmp_path, token_file=str(tokens)))
    app = tracker_application(
        nothing, status=nothing, ready=lambda: None, release="test", guard=guard, observer=no_stream()
    )
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        yield server.url


def test_given_token_wins_over_that_of_the_environment(url: str, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TOKENS", f"operator {OPERATOR}\nreader {READER}")  # of the server too
    with Client(url) as client:
        assert client.caller().roles == ("operator",)
    with Client(url, token=READER) as client:
        assert client.caller().roles == ("reader",) and client.caller().guarded
        assert READER not in repr(vars(client._driver))
        with pytest.raises(AccessError, match="not of role query or operator"):
            client.records("r1-1-1")
        with pytest.raises(AccessError, match="not of role operator"):
            client.retry()
        with pytest.raises(UnreachableError, match="no stream"):
            client.overview()
        with pytest.raises(UnreachableError, match="stopping"):
            next(client.events())
    monkeypatch.delenv("FOREBAY_TOKENS")
    with Client(url, token_file=str(tokens), role="reader") as client:
        assert client.caller().roles == ("reader",)


@pytest.mark.parametrize("token", [None, "not-a-token-of-this-service"])
def test_missing_or_unknown_token_is_an_access_error(url: str, token: str | None) -> None:
    with Client(url, token=token) as client:
        for ask in (client.overview, client.caller, lambda: next(client.events())):
            with pytest.raises(AccessError):
                ask()


def test_driver_that_does_not_listen_is_unreachable() -> None:
    with Client(["http://127.0.0.1:1", "http://127.0.0.1:2"], timeout_seconds=2.0) as client:
        for ask in (client.overview, client.retry, lambda: next(client.events())):
            with pytest.raises(UnreachableError, match="refused"):
                ask()
