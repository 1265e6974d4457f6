"""Where receivers run: cases with their reasons, and properties over random fleets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.decisions.placing import Fleet, Host, Placement, place, rank

ANY = 100


def fleet(hosts: Sequence[Host], places: Mapping[int, str], **more: object) -> Fleet:
    return Fleet(tuple(hosts), places, **{"movable": tuple(places), **more})  # type: ignore[arg-type]


def hosts(*names: str, capacity: int = ANY) -> list[Host]:
    return [Host(name, capacity) for name in names]


def new(count: int) -> dict[int, str]:
    return dict.fromkeys(range(count), "")


def after(before: Fleet, placement: Placement) -> Fleet:
    return replace(before, places={**before.places, **placement.starts, **placement.moves})


def settled(before: Fleet, preferred: Sequence[str] = (), moves_max: int = 1) -> Fleet:
    """Round after round until nothing changes; it must come to rest."""
    for _ in range(500):
        placement = place(before, preferred, moves_max)
        if not placement.starts and not placement.moves:
            return before
        before = after(before, placement)
    raise AssertionError("the fleet never comes to rest")


def load(placed: Fleet) -> dict[str, int]:
    counts = Counter(placed.places.values())
    return {host.name: counts[host.name] for host in placed.hosts}


# ---- cases -----------------------------------------------------------------------------------------------------------


def test_receivers_spread_evenly_over_hosts() -> None:
    assert load(settled(fleet(hosts("a", "b", "c"), new(7)))) == {"a": 3, "b": 2, "c": 2}


def test_preferred_hosts_come_first_but_never_have_two_while_another_has_none() -> None:
    placed = place(fleet(hosts("a", "b", "c"), new(4)), preferred=("c", "b"))
    assert dict(placed.starts) == {0: "c", 1: "b", 2: "a", 3: "c"}


def test_a_preference_may_be_a_label() -> None:
    fast = Host("z", ANY, frozenset({"disk=nvme", "rack=b"}))
    assert rank(fast, ("rack=a", "disk=nvme")) == 1
    assert rank(Host("z", ANY), ("rack=a",)) == 1
    assert dict(place(fleet([*hosts("a"), fast], new(1)), ("disk=nvme",)).starts) == {0: "z"}


def test_a_full_fleet_reports_the_receivers_without_a_host() -> None:
    placed = place(fleet([Host("a", 1), Host("b", 0), Host("c", 2)], new(5)))
    assert Counter(placed.starts.values()) == {"a": 1, "c": 2}
    assert placed.homeless == (3, 4)


def test_a_host_that_joins_gets_its_share_by_bounded_moves() -> None:
    before = fleet(hosts("a", "b", "c"), {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"})
    assert dict(place(before).moves) == {5: "c"}
    assert load(settled(before)) == {"a": 2, "b": 2, "c": 2}


def test_only_the_receivers_of_a_host_that_leaves_move() -> None:
    placed = place(fleet(hosts("a", "b"), {0: "a", 1: "", 2: "b", 3: ""}))
    assert not placed.moves
    assert load(after(fleet(hosts("a", "b"), {0: "a", 1: "", 2: "b", 3: ""}), placed)) == {"a": 2, "b": 2}


def test_a_receiver_on_an_unknown_host_stays_and_counts_nowhere() -> None:
    placed = place(fleet(hosts("a"), {0: "silent", 1: ""}))
    assert (dict(placed.starts), dict(placed.moves)) == ({1: "a"}, {})


def test_a_host_that_may_run_fewer_than_it_does_gives_some_away_even_to_fuller_ones() -> None:
    before = fleet([Host("a", 0), Host("b", ANY)], {0: "a", 1: "b", 2: "b"})
    assert dict(place(before).moves) == {0: "b"}


def test_another_host_is_taken_where_a_receiver_kept_failing_unless_there_is_none() -> None:
    avoided = {0: frozenset({"a"})}
    assert dict(place(fleet(hosts("a", "b"), new(1), avoided=avoided)).starts) == {0: "b"}
    assert dict(place(fleet(hosts("a"), new(1), avoided=avoided)).starts) == {0: "a"}


def test_nothing_moves_onto_a_host_where_a_receiver_kept_failing() -> None:
    before = fleet(hosts("a", "b"), {0: "b", 1: "b"}, avoided={0: frozenset({"a"})})
    assert not place(before).moves


def test_only_those_that_may_move_are_moved() -> None:
    before = fleet(hosts("a", "b"), {0: "a", 1: "a", 2: "a"}, movable=(0,))
    assert dict(place(before, moves_max=5).moves) == {0: "b"}


@pytest.mark.parametrize(
    ("preferred", "starts"),
    [((), {0: "a", 1: "b"}), (("b",), {0: "b"}), (("none",), {})],
    ids=["any", "preferred", "absent"],
)
def test_while_hosts_may_still_appear_only_starts_that_will_not_move_happen(
    preferred: tuple[str, ...], starts: dict[int, str]
) -> None:
    placed = place(fleet(hosts("a", "b"), new(4)), preferred, share=False)
    assert (dict(placed.starts), dict(placed.moves), placed.homeless) == (starts, {}, ())


# ---- properties ------------------------------------------------------------------------------------------------------

NAMES = [f"h{n}" for n in range(6)]
LABELS = ["rack=a", "rack=b"]
SOME_HOSTS = st.lists(
    st.builds(Host, st.sampled_from(NAMES), st.sampled_from([0, 1, 2, 3, ANY]), st.frozensets(st.sampled_from(LABELS))),
    min_size=1,
    unique_by=lambda host: host.name,
)
PREFERRED = st.lists(st.sampled_from([*NAMES[:4], *LABELS]), unique=True, max_size=3)
PLACES = st.lists(st.sampled_from(["", *NAMES]), max_size=12).map(lambda names: dict(enumerate(names)))


def in_their_places(some: Sequence[Host], places: Mapping[int, str]) -> Fleet:
    """A fleet whose receivers are on hosts of it, or have no place."""
    known = {host.name for host in some}
    return fleet(some, {n: name if name in known else "" for n, name in places.items()})


@given(SOME_HOSTS, PLACES, PREFERRED, st.integers(1, 3))
def test_any_fleet_comes_to_rest_even_within_one_with_preferences_kept(
    some: list[Host], places: dict[int, str], preferred: list[str], moves_max: int
) -> None:
    placed = settled(in_their_places(some, places), preferred, moves_max)
    counts = load(placed)
    room = {host.name: host.capacity for host in some}
    assert all(counts[name] <= room[name] or not any(counts[n] < room[n] for n in room) for name in room)
    for full in some:
        for other in some:
            if counts[other.name] >= room[other.name]:
                continue  # it has no room: not eligible
            assert counts[full.name] <= counts[other.name] + 1, "even within one"
            assert not (counts[full.name] >= 2 and counts[other.name] == 0), "never two while another has none"
            if rank(other, preferred) < rank(full, preferred):
                assert counts[full.name] <= counts[other.name], "the better one has no fewer"
    homeless = [n for n, name in placed.places.items() if not name]
    assert not homeless or not any(counts[n] < room[n] for n in room)


@given(SOME_HOSTS, st.integers(0, 12), PREFERRED)
def test_a_new_stream_is_at_rest_after_one_round(some: list[Host], count: int, preferred: list[str]) -> None:
    first = fleet(some, new(count))
    placed = place(first, preferred, moves_max=ANY)
    assert not placed.moves
    again = place(after(first, placed), preferred, moves_max=ANY)
    assert not again.moves and not again.starts


@given(SOME_HOSTS, PLACES, PREFERRED, st.integers(0, 3))
def test_moves_are_bounded_and_none_goes_where_it_is_or_where_no_room_is(
    some: list[Host], places: dict[int, str], preferred: list[str], moves_max: int
) -> None:
    before = in_their_places(some, places)
    placed = place(before, preferred, moves_max)
    assert len(placed.moves) <= moves_max
    counts, were = load(after(before, placed)), load(before)
    for number, name in {**placed.starts, **placed.moves}.items():
        assert name != before.places[number]
    for host in some:
        assert counts[host.name] <= max(host.capacity, were[host.name])


@given(SOME_HOSTS, st.integers(1, 12), PREFERRED, st.data())
def test_a_host_that_comes_back_costs_no_more_moves_than_receivers_that_it_gets(
    some: list[Host], count: int, preferred: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(some))
    rest = settled(fleet([h for h in some if h != gone], new(count)), preferred)
    before = fleet(some, rest.places)
    placed = place(before, preferred, moves_max=ANY)
    done = after(before, placed)
    assert len(placed.moves) <= load(done)[gone.name]
    assert set(placed.moves.values()) <= {gone.name}
