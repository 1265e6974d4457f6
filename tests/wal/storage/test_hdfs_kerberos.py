"""HDFS with Kerberos as a store: logins by keytab and by ticket, tickets that are over, and what a login that fails says."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.model.errors import StoreError
from tests.conftest import missing
from tests.support.servers.kerberos import Kdc, require_kerberos
from tests.support.stores.hdfs import NAME_NODE, require_hdfs
from tests.support.stores.secured_hdfs import SecuredHdfs
from wal.storage.hdfs import HdfsStorage

pytestmark = [pytest.mark.hdfs, pytest.mark.long]

_LIFE_SECONDS = 4
_PATIENCE_SECONDS = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    require_kerberos(missing)
    with Kdc(tmp_path_factory.mktemp("kdc")) as kdc, pytest.MonkeyPatch.context() as patched:
        for name, value in kdc.environment.items():
            patched.setenv(name, value)
        patched.setenv("KRB5CCNAME", str(kdc.configuration.with_name("no-such-cache")))
        yield kdc


@pytest.fixture(scope="module")
def server(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredHdfs]:
    require_hdfs(missing)
    with SecuredHdfs(tmp_path_factory.mktemp("secured-hdfs"), kdc) as server:
        yield server


def storage_of(server: SecuredHdfs, user: str, options: dict[str, str]) -> HdfsStorage:
    """A client of its own: connections that are logged in already are not used."""
    own = {"number": str(next(_numbers)), "request_timeout": "10s", "retry_timeout": "60s"}
    return HdfsStorage(f"{server.url}/user/{user}/wal", {**options, **own})


def test_login_by_keytab_outlives_its_tickets_and_a_ticket_that_is_over_says_so(server: SecuredHdfs, kdc: Kdc) -> None:
    """A connection needs a ticket when it is made. The NameNode's fail-over breaks the connections that there are."""
    keytab = kdc.keytab("forebay", life=f"{_LIFE_SECONDS}s")
    server.make_home("forebay")
    by_keytab = storage_of(server, "forebay", server.login("forebay", keytab))
    by_keytab.put_new("a", b"x" * 100_000)
    assert by_keytab.read("a") == b"x" * 100_000

    cache = kdc.log_in("forebay", keytab)
    by_ticket = storage_of(server, "forebay", server.login("forebay", cache=cache))
    by_ticket.put_new("b", b"y")
    await_end_of_ticket(server, cache)
    by_ticket.put_new("c", b"over the connection that there is")
    server.fail_over(NAME_NODE)
    by_keytab.put_new("d", b"z")
    with pytest.raises(StoreError, match=r"Kerberos.*expired") as caught:
        by_ticket.put_new("e", b"")
    assert "kinit" in str(caught.value) and "\n" not in str(caught.value)

    kdc.log_in("forebay", keytab)
    by_ticket.put_new("e", b"another ticket in the same cache")
    assert by_keytab.list("") == ["a", "b", "c", "d", "e"]


def await_end_of_ticket(server: SecuredHdfs, cache: Path) -> None:
    """Until no new connection can be made with it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            storage_of(server, "forebay", server.login("forebay", cache=cache)).exists("a")
        except StoreError:
            return
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("principal", "given", "expected"),
    [
        ("forebay", {}, "Kerberos.*kinit"),
        ("forebay", {"kerberos_keytab": "/no/such.keytab"}, "Kerberos.*kerberos_keytab"),
        ("nobody", {}, "Kerberos"),
    ],
)
def test_login_that_fails_is_an_error_that_names_the_next_step(
    server: SecuredHdfs, principal: str, given: dict[str, str], expected: str
) -> None:
    """It needs a person, so it is not tried again for long."""
    storage = storage_of(server, "forebay", {**server.login(principal), **given})
    began = time.monotonic()
    with pytest.raises(StoreError, match=expected):
        storage.exists("a")
    assert time.monotonic() - began < 20.0


def test_client_without_kerberos_is_refused_with_the_setting_that_it_lacks(server: SecuredHdfs) -> None:
    with pytest.raises(StoreError, match=r"hadoop\.security\.authentication") as error:
        storage_of(server, "forebay", server.options).tried_for(1.0).exists("a")
    assert "RPC listener disconnected" in str(error.value)


def test_kdc_that_does_not_answer_for_a_moment_is_waited_for(server: SecuredHdfs, kdc: Kdc) -> None:
    keytab = kdc.keytab("patient")
    server.make_home("patient")
    storage = storage_of(server, "patient", server.login("patient", keytab))
    kdc.stop()
    with pytest.raises(StoreError, match="Kerberos"):
        storage.tried_for(0.0).exists("a")
    kdc.start()
    assert not storage.exists("a")
