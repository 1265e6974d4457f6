"""Ends the servers of a share of tests with the share's last test: a server that waits for the end of a run takes processor time.

A fixture's scope can't say this: the files of one share are in several folders (``tests.support.run.shares``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.run.shares import share_of

#: fixtures of ``tests/conftest.py``; a later test that uses one starts it again
SERVERS = ("hdfs_server", "postgresql", "schema_registry", "secured_broker")

Setup = tuple["pytest.FixtureDef[Any]", pytest.FixtureRequest]


class IdleServers:
    """The plug-in."""

    def __init__(self) -> None:
        self._running: list[Setup] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        if fixturedef.argname in SERVERS:
            self._running.append((fixturedef, request))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Raises what the end of a server raises: it is an error of the last test."""
        result = yield
        if nextitem is None or share_of(nextitem.nodeid) != share_of(item.nodeid):
            while self._running:
                fixture, request = self._running.pop()
                fixture.finish(request)  # type: ignore[arg-type]  # it is a SubRequest, a class that pytest does not export
        return result
