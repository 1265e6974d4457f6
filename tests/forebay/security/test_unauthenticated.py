"""Which connection ends for a new one: the oldest of the peer with the most connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.http.unauthenticated import Unauthenticated, peer_of


def test_new_connection_ends_oldest_of_peer_with_most() -> None:
    connections: Unauthenticated[str] = Unauthenticated(4)
    for name, peer in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("a2", "a")):
        assert connections.add(name, peer) is None
    assert connections.add("b3", "b") == "b1"
    assert connections.add("c1", "c") == "a1"
    assert connections.add("c2", "c") == "b2"
    connections.discard("c2")
    assert connections.add("b4", "b") is None


def test_among_equal_peers_oldest_connection_ends() -> None:
    """The order in which peers connected does not matter: a peer's older connections may be authenticated meanwhile."""
    connections: Unauthenticated[str] = Unauthenticated(3)
    for name in ("a1", "b1", "a2"):
        assert connections.add(name, name[0]) is None
    connections.discard("a1")
    assert connections.add("c1", "c") is None
    assert connections.add("d1", "d") == "b1"


@given(st.lists(st.sampled_from("abcd"), max_size=60))
def test_peer_below_its_share_loses_no_connection(flood: list[str]) -> None:
    connections: Unauthenticated[object] = Unauthenticated(10)
    mine = {"me 1", "me 2"}
    for name in mine:
        assert connections.add(name, "me") is None
    for number, peer in enumerate(flood):
        ended = connections.add((peer, number), peer)
        assert ended not in mine
        assert len(connections) <= 10


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_peer_is_an_address_or_a_network_whose_addresses_one_host_can_choose(address: str, peer: str) -> None:
    assert peer_of(address) == peer
