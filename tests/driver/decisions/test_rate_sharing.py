"""Distribution of the stream's rate: never more than the rate, never less than the minimum, a share for each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.decisions.rate_sharing import RateLimits, RateSharing, Sharer, share, share_out
from forebay.messages import Rates
from forebay.model.values import TopicPartition

P = [TopicPartition("t", n) for n in range(6)]
NONE = math.inf


def rates(shared: Rates) -> dict[int, float]:
    return {p.partition: p.records_per_second for p in shared.partitions}


# ---- one number, divided ---------------------------------------------------------------------------------------------


def test_most_is_shared_by_lag_and_a_tenth_evenly() -> None:
    """1000: 100 evenly, 50 each; 900 by lag, 3 to 1: 675 and 225."""
    assert share(1000, [Sharer(300, 1, 1, NONE), Sharer(100, 1, 1, NONE)]) == pytest.approx([725, 275])


def test_without_any_lag_all_is_shared_evenly_by_size() -> None:
    assert share(1000, [Sharer(0, 3, 1, NONE), Sharer(0, 1, 1, NONE)]) == pytest.approx([750, 250])


def test_what_exceeds_one_maximum_goes_to_the_others() -> None:
    assert share(1000, [Sharer(900, 1, 1, 200), Sharer(50, 1, 1, NONE), Sharer(50, 1, 1, NONE)]) == pytest.approx(
        [200, 400, 400]
    )


def test_a_minimum_is_taken_from_those_who_have_more() -> None:
    given_ = share(1000, [Sharer(1000, 1, 300, NONE), Sharer(0, 1, 300, NONE)])
    assert given_ == pytest.approx([700, 300])


def test_minima_are_given_even_if_they_exceed_the_rate_together() -> None:
    assert share(100, [Sharer(9, 1, 80, NONE), Sharer(1, 1, 80, NONE)]) == pytest.approx([80, 80])


def test_a_maximum_below_the_minimum_wins() -> None:
    assert share(100, [Sharer(9, 1, 80, 10), Sharer(1, 1, 80, 10)]) == pytest.approx([10, 10])


def test_no_sharers_get_no_shares() -> None:
    assert share(100, []) == []


_lag = st.one_of(st.just(0.0), st.floats(0, 1e12))
_most = st.one_of(st.just(math.inf), st.floats(1, 1e6))
_sharer = st.builds(Sharer, _lag, st.integers(1, 50), st.floats(1, 1000), _most)


@given(st.floats(1, 1e9), st.lists(_sharer, min_size=1, max_size=40))
def test_shares_add_up_to_the_rate_within_bounds_and_none_is_too_small(rate: float, sharers: list[Sharer]) -> None:
    shares = share(rate, sharers)
    bounds = [(min(s.least, s.most), s.most) for s in sharers]
    least, most = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    assert sum(shares) == pytest.approx(min(max(rate, least), most), rel=1e-6)
    for given_, (low, high) in zip(shares, bounds, strict=True):
        assert low <= given_ <= high
        assert given_ > 0


@given(st.floats(1, 1e9), st.lists(_sharer, min_size=2, max_size=20), st.data())
def test_more_lag_never_gets_less(rate: float, sharers: list[Sharer], data: st.DataObject) -> None:
    one, other = data.draw(st.permutations(range(len(sharers))))[:2]
    bounds = (sharers[one].size, sharers[one].least, sharers[one].most)
    sharers[other] = Sharer(sharers[one].lag + data.draw(_lag), *bounds)
    shares = share(rate, sharers)
    assert shares[other] >= shares[one] * (1 - 1e-9)


# ---- over receivers and partitions -----------------------------------------------------------------------------------


def test_receivers_get_by_the_lag_of_their_partitions_and_partitions_by_their_own() -> None:
    shared = share_out(1000, {"a": {P[0]: 600, P[1]: 0}, "b": {P[2]: 200}}, RateLimits())
    # a: 0.1 x 1000 x 2/3 + 900 x 600/800; b: the rest
    assert shared["a"].records_per_second == pytest.approx(741.67, abs=0.01)
    assert shared["b"].records_per_second == pytest.approx(258.33, abs=0.01)
    assert rates(shared["a"]) == pytest.approx({0: 741.67 * 0.95, 1: 741.67 * 0.05}, rel=1e-4)
    assert rates(shared["b"]) == pytest.approx({2: 258.33}, rel=1e-4)


def test_a_partition_whose_lag_is_not_known_counts_as_a_usual_one() -> None:
    shared = share_out(1000, {"a": {P[0]: 300, P[1]: 100, P[2]: None}}, RateLimits())
    shares = rates(shared["a"])
    assert shares[1] < shares[2] < shares[0]


def test_a_receiver_that_holds_nothing_yet_gets_as_much_as_each_would() -> None:
    """It may soon get many partitions, and must not take all of them in at full speed until it gets its rates."""
    shared = share_out(1000, {"a": {P[0]: 300}, "b": {}}, RateLimits())
    assert shared["b"] == Rates(records_per_second=500)
    assert shared["a"].records_per_second == pytest.approx(1000)


_lags = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 10**12)), max_size=8), min_size=1, max_size=8)


@given(
    st.floats(1, 1e8),
    _lags,
    st.sampled_from([0.0, 5.0, 800.0]),
    st.sampled_from([0.0, 50.0, 400.0]),
    st.sampled_from([1.0, 20.0]),
)
def test_any_fleet_gets_no_more_than_the_rate_and_every_partition_its_minimum(
    rate: float, fleet: list[list[int | None]], max_rate: float, max_each: float, min_each: float
) -> None:
    lags = {
        f"r{n}": {TopicPartition("t", n * 100 + p): lag for p, lag in enumerate(own)} for n, own in enumerate(fleet)
    }
    shared = share_out(
        rate, lags, RateLimits(max_rate=max_rate, max_rate_per_partition=max_each, min_rate_per_partition=min_each)
    )
    assert shared.keys() == lags.keys()
    holding = {receiver: shared[receiver] for receiver, own in lags.items() if own}
    partitions = sum(map(len, lags.values()))
    allowed = max(rate, min_each * partitions)
    assert sum(r.records_per_second for r in holding.values()) <= allowed * (1 + 1e-9)
    for receiver, own in lags.items():
        assert {p.partition for p in shared[receiver].partitions} == {tp.partition for tp in own}
        assert not max_rate or shared[receiver].records_per_second <= max_rate
        shares = [p.records_per_second for p in shared[receiver].partitions]
        assert all(each > 0 for each in shares)
        assert not max_each or all(each <= max_each for each in shares)
        if not max_rate or max_rate >= min_each * len(own):  # a receiver's maximum wins over its partitions' minima
            assert all(each >= min(min_each, max_each or min_each) for each in shares)
            assert sum(shares) <= max(shared[receiver].records_per_second, min_each * len(own)) * (1 + 1e-9)


# ---- which receivers get new rates -----------------------------------------------------------------------------------


def test_a_receiver_gets_rates_again_only_after_a_significant_change() -> None:
    lag = {"now": 1000}
    sharing = RateSharing(RateLimits(), 1000.0)

    def latest(at: float) -> Rates | None:
        return sharing.changed_rates("a", lambda: {"a": {P[0]: lag["now"], P[1]: 1000}}, at)

    assert latest(0.0) is not None
    lag["now"] = 1010
    assert latest(2.0) is None
    lag["now"] = 5000
    assert latest(2.5) is None, "lags are read one time per second"
    shared = latest(3.1)
    assert shared is not None
    assert rates(shared)[0] > rates(shared)[1]
    sharing.change(1001.0)
    assert latest(3.2) is None
    sharing.change(500.0)
    shared = latest(3.3)
    assert shared is not None
    assert shared.records_per_second == pytest.approx(500)


def test_before_a_rate_is_learned_receivers_get_no_rates() -> None:
    sharing = RateSharing(RateLimits())
    assert sharing.changed_rates("a", lambda: {"a": {P[0]: 1}}, 0.0) is None
