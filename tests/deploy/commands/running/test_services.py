"""Which processes `forebay up` runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import pytest

from deploy.commands.running import services
from deploy.commands.running.services import children, children_of
from deploy.console.invocation import Invocation
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings


def settings(mode: str) -> Settings:
    return from_values(
        {
            "stream": "flights",
            "kafka": {"topics": ["t"], "bootstrap.servers": "b"},
            "wal": {"url": "file:///w"},
            "driver": {"journal": "file:///j"},
            "agent": {"blocks": "/b"},
            "receiver": {"mode": mode, "host": "h1"},
        }
    )


def test_static_receivers_are_ups_own_and_stop_first() -> None:
    made = children(settings("static"), Path("f.toml"), range(1, 3))
    assert sorted(made, key=lambda child: child.stop_rank)[0].name == "receiver-1"
    assert {child.name for child in made} == {"driver", "agent", "receiver-1", "receiver-2"}


def test_nothing_is_started_before_ups_own_driver_leads() -> None:
    """INV-4: what registers with a driver that runs already would fence that one's receivers."""
    for mode in ("static", "managed"):
        made = children(settings(mode), Path("f.toml"), range(1, 3))
        assert [child.name for child in made if child.goes_first] == ["driver"]


def test_managed_receivers_are_the_agents_which_ends_before_the_driver_and_has_the_time_to_drain_them() -> None:
    made = {child.name: child for child in children(settings("managed"), Path("f.toml"), range(1, 3))}
    assert set(made) == {"driver", "agent"}
    assert made["agent"].stop_rank < made["driver"].stop_rank
    assert made["agent"].stop_seconds > settings("managed").receiver.drain_timeout


def test_several_streams_have_one_driver_and_agents_and_receivers_of_their_own() -> None:
    first, second = settings("static"), msgspec.structs.replace(settings("managed"), stream="other")
    driver, *others = children_of([(first, Path("f.toml")), (second, Path("g.toml"))])
    assert driver.name == "driver" and driver.goes_first and not any(child.goes_first for child in others)
    assert driver.command[-3:] == ("driver", "--with", str(Path("g.toml").resolve()))
    assert [child.name for child in others] == [f"{first.stream}-agent", f"{first.stream}-receiver-1", "other-agent"]
    assert {child.command[4] for child in others if child.name.startswith("other")} == {str(Path("g.toml").resolve())}
    assert children_of([(first, Path("f.toml"))]) == children(first, Path("f.toml"), range(1, 2))


def test_event_that_cannot_be_printed_ends_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """`forebay up` would end all services, because its stderr is on a full disk for a moment."""
    with io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True) as full:
        monkeypatch.setattr(sys, "stderr", full)
        services._print(Invocation(), "the driver was restarted")
        monkeypatch.undo()
