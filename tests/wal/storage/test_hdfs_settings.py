"""Addresses and settings of HDFS as a store: read without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.model.errors import UsageError
from wal.storage import hdfs_connection, open_storage
from wal.storage.hdfs import HdfsStorage


def test_constructing_does_no_io_and_opens_no_client() -> None:
    before = len(hdfs_connection._connections)
    open_storage("hdfs://no-such-host:8020/x")
    assert len(hdfs_connection._connections) == before


def test_settings_reach_the_client_unchanged_and_those_of_kerberos_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []

    class Client:
        def __init__(self, *arguments: Any, **kerberos: str) -> None:
            given.append((arguments, kerberos))

    monkeypatch.setattr(hdfs_connection, "AsyncClient", Client)
    settings = {
        "dfs.namenode.rpc-address.here.a": "host:8020",
        "hadoop.security.authentication": "kerberos",
        "dfs.replication": "2",
    }
    storage = open_storage("hdfs://here/x", {"hdfs": {**settings, "kerberos_principal": "forebay@EXAMPLE.COM"}})
    hdfs_connection.connection(storage._authority, storage._options)  # type: ignore[attr-defined]
    ((authority, configuration), kerberos) = given[0]
    assert authority == "hdfs://here"
    del settings["dfs.replication"]  # goes with each file
    assert configuration == {
        **settings,
        "dfs.client.failover.max.attempts": "1",
    }  # the names of NameNodes are not known
    assert kerberos == {"kerberos_principal": "forebay@EXAMPLE.COM"}


@pytest.mark.parametrize(
    "url", ["hdfs:///x", "hdfs://user@host/x", "hdfs://host/x?y=1", "hdfs:relative", "hdfs://host/x#y"]
)
def test_urls_that_name_no_folder_of_a_name_node_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="hdfs://name-node:port/folder"):
        HdfsStorage(url)


@pytest.mark.parametrize("key", ["dfs.replication", "dfs.blocksize", "request_timeout", "retry_timeout"])
def test_a_setting_that_is_no_number_is_refused_by_name(key: str) -> None:
    with pytest.raises(UsageError, match=rf"^storage.hdfs.{key} = 'two': ") as caught:
        open_storage("hdfs://host/x", {"hdfs": {key: "two"}})
    assert "\n" not in str(caught.value)
