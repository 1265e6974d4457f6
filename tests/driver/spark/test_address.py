"""By which address of its host Spark is started."""

from __future__ import annotations

import os
import socket

import pytest

from driver.spark import address as spark_address
from driver.spark.address import addressed, check_address, is_on_loopback
from forebay.model.errors import SettingsError, UnreachableError


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spark_address.ADDRESS, raising=False)
    monkeypatch.delenv(spark_address.NAME, raising=False)


def no_address(code: int) -> object:
    def look(*_: object) -> None:
        raise socket.gaierror(code, "no")

    return look


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*, 4]"])
def test_a_local_spark_listens_on_loopback_and_needs_no_name(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_address(socket.EAI_NONAME))
    with addressed(master):
        assert os.environ[spark_address.ADDRESS] == "127.0.0.1"
    assert spark_address.ADDRESS not in os.environ, "a session of a cluster may follow"


@pytest.mark.parametrize("name", [spark_address.ADDRESS, spark_address.NAME])
def test_an_address_in_the_environment_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_address(socket.EAI_NONAME))
    monkeypatch.setenv(name, "10.0.0.1")
    for master in ("local[2]", "spark://a:7077"):
        with addressed(master):
            assert {key: os.environ.get(key) for key in (spark_address.ADDRESS, spark_address.NAME)}[name] == "10.0.0.1"
            assert os.environ.get(spark_address.ADDRESS) != "127.0.0.1"
    assert os.environ[name] == "10.0.0.1"


@pytest.mark.parametrize("master", ["", "spark://a:7077", "yarn"])
def test_a_host_whose_name_has_no_address_is_refused_in_one_sentence(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a name service can't tell now is tried again by a supervisor (exit code 3)."""
    monkeypatch.setattr(socket, "getaddrinfo", no_address(socket.EAI_NONAME))
    with pytest.raises(SettingsError, match=r"has no address .*/etc/hosts"):
        check_address(master)
    monkeypatch.setattr(socket, "getaddrinfo", no_address(socket.EAI_AGAIN))
    with pytest.raises(UnreachableError, match="has no address"), addressed(master):
        pytest.fail("Spark was started")


def test_spark_has_its_pages_on_only_where_other_hosts_cannot_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They require no token."""
    assert is_on_loopback("local[2]")
    assert not any(map(is_on_loopback, ("", "yarn", "spark://a:7077", "k8s://https://a:443")))
    for name, value, expected in (
        (spark_address.ADDRESS, "127.0.0.2", True),
        (spark_address.ADDRESS, "10.0.0.1", False),
        (spark_address.NAME, "host-1", False),
    ):
        with monkeypatch.context() as given:
            given.setenv(name, value)
            assert is_on_loopback("local[2]") is expected
