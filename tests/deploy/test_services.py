"""Which processes `forebay up` runs."""

from __future__ import annotations

from pathlib import Path

from deploy.commands.running.services import children
from forebay.settings.load import from_values
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
