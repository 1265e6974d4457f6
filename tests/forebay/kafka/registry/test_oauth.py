"""A schema registry that requires OAuth tokens, and a token endpoint that checks client credentials."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from forebay.kafka.registry.client import AVRO, RegisteredSchema, Registry, RegistryAccess
from forebay.kafka.registry.oauth import ClientCredentials
from forebay.model.errors import UnreachableError, UsageError
from tests.support.kafka.registered import Writers
from tests.support.run.ports import free_port
from tests.support.servers.certificates import Authority
from tests.support.servers.registry_front import RegistryFront
from tests.support.servers.token_endpoint import TokenEndpoint

SECRET = "s3cret-of-nobody"
SCHEMA = {"type": "record", "name": "Token", "fields": [{"name": "y", "type": "int"}]}


def access(url: str, endpoint: str, **more: str) -> RegistryAccess:
    options = {
        "bearer.auth.client.id": "reader", "bearer.auth.client.secret": SECRET, "bearer.auth.scope": "schemas",
        "bearer.auth.issuer.endpoint.url": endpoint, **{name.replace("_", "."): value for name, value in more.items()},
    }  # fmt: skip
    return RegistryAccess(url, tuple(sorted(options.items())), 30.0, 3)


@pytest.fixture
def number(writers: Writers) -> int:
    return writers.register("token-value", SCHEMA)


def found(with_: RegistryAccess, number: int, times: int = 1) -> list[RegisteredSchema | None]:
    with Registry(with_) as registry:
        return [registry.schema(number, AVRO) for _ in range(times)]


def test_token_is_requested_once_and_sent_only_to_registry(writers: Writers, number: int, tmp_path: Any) -> None:
    """Both use https with certificates of a private authority; the endpoint's client also trusts the system's authorities."""
    authority = Authority(tmp_path)
    files = authority.issue("both")
    with (
        TokenEndpoint("reader", SECRET, "schemas", files=files) as endpoint,
        RegistryFront(writers.url, endpoint.holds, files) as front,
    ):
        own = access(front.url, endpoint.url, ssl_ca_location=str(authority.ca_file))
        assert None not in found(own, number, 3) and len(endpoint.given) == 1
        assert SECRET not in repr(own) + repr(pickle.loads(pickle.dumps(own)))
        with pytest.raises(UnreachableError, match=r"the token endpoint https://.*/token .* CERTIFICATE_VERIFY_FAILED"):
            found(access(front.url, endpoint.url), number)


@pytest.mark.parametrize(("lives_seconds", "tokens"), [(0.001, 3), (None, 1)])
def test_expiring_token_is_replaced(lives_seconds: float | None, tokens: int) -> None:
    """A token without an expiry time is used until it is refused."""
    with TokenEndpoint("reader", SECRET, lives_seconds=lives_seconds) as endpoint:
        own = {
            "client.id": "reader",
            "client.secret": SECRET,
            "issuer.endpoint.url": endpoint.url,
            "identity.pool.id": "p",
        }
        made = ClientCredentials(own, None, 30.0)
        try:
            fields = [made.fields() for _ in range(3)]
        finally:
            made.close()
        assert [one["bearer.auth.token"] for one in fields] == (list(endpoint.given) * 3)[:3]
        assert len(endpoint.given) == tokens
        assert fields[0] | {"bearer.auth.token": ""} == {
            "bearer.auth.token": "", "bearer.auth.logical.cluster": "", "bearer.auth.identity.pool.id": "p"
        }  # fmt: skip


def test_refused_token_error_has_cause_without_secrets(writers: Writers, number: int) -> None:
    with (
        TokenEndpoint("reader", SECRET, "schemas") as endpoint,
        RegistryFront(writers.url, endpoint.holds) as front,
    ):
        with pytest.raises(UsageError, match="refused a token: invalid_client: who are you") as refused:
            found(access(front.url, endpoint.url, bearer_auth_client_secret=f"not-{SECRET}"), number)
        with pytest.raises(UsageError, match="refused a token: invalid_scope"):
            found(access(front.url, endpoint.url, bearer_auth_scope="all"), number)
        assert front.asked == []
        own = access(front.url, endpoint.url)
        for body in ("<html>", "{}", '["x"]', '{"access_token": 1}'):
            endpoint.answers = [(200, body)]
            with pytest.raises(
                UsageError, match=r"returned no token; check schema\.registry\.bearer\.auth\.issuer\.endpoint\.url"
            ):
                found(own, number)
        endpoint.answers = [(503, "")] * 2
        assert None not in found(own, number)  # asked again
        endpoint.answers = [(503, "")] * 3
        with pytest.raises(UnreachableError, match="answered with status 503"):
            found(own, number)
        endpoint.given.clear()
        with pytest.raises(UnreachableError, match="did not answer: ConnectError") as away:
            found(access(front.url, f"http://127.0.0.1:{free_port()}/token"), number)
    assert SECRET not in str(refused.value) + str(away.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"bearer_auth_client_secret": ""}, "client.secret is missing"),
        (
            {"bearer_auth_issuer_endpoint_url": f"https://u:{SECRET}@login/token"},
            "allowed is the URL of a token endpoint",
        ),
        ({"bearer_auth_issuer_endpoint_url": "login/token"}, "allowed is the URL of a token endpoint"),
        ({"bearer_auth_credentials_source": "CUSTOM"}, "'CUSTOM': allowed are STATIC_TOKEN and OAUTHBEARER"),
        ({"ssl_ca_location": "/nowhere.pem"}, "ssl.ca.location: /nowhere.pem: .*No such file"),
    ],
)
def test_invalid_token_options_are_refused(more: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        found(access("http://registry", "http://login/token", **more), 1)
    assert SECRET not in str(refused.value)
