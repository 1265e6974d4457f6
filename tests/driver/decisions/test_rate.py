"""The PID estimator, against values worked out by hand beside each test."""

from __future__ import annotations

import pytest

from driver.decisions.rate import Gains, RateEstimator, is_significant

INTERVAL_MS = 1000.0


def test_the_first_batch_only_sets_the_rate() -> None:
    """600 records in 500 ms: 1200 records/s; no rate is returned before the second batch, which was as quick, confirms it."""
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS)
    assert estimator.learn(1_000, 600, 500, 0) is None
    assert estimator.learn(2_000, 600, 500, 0) == 1200


def test_the_rate_follows_what_batches_were_processed_at() -> None:
    """Set to 1000. The second batch: 800 records in 1000 ms, rate 800. error = 1000 - 800 = 200, no wait:
    1000 - 1.0 x 200 = 800. The third: 900 in 500 ms, rate 1800; error = 800 - 1800 = -1000: 800 + 1000 = 1800."""
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS)
    estimator.learn(1_000, 1000, 1000, 0)
    assert estimator.learn(2_000, 800, 1000, 0) == 800
    assert estimator.learn(3_000, 900, 500, 0) == 1800


def test_a_batch_that_waited_for_its_turn_lowers_the_rate_by_the_backlog() -> None:
    """Set to 1000. 1000 records in 1000 ms after 1500 ms of waiting: error 0; historical error = 1500 x 1000 / 1000 = 1500;
    1000 - 0.2 x 1500 = 700."""
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS)
    estimator.learn(1_000, 1000, 1000, 0)
    assert estimator.learn(2_000, 1000, 1000, 1500) == 700


def test_the_interval_is_what_waiting_is_measured_by() -> None:
    """As above with batches each 500 ms: historical error = 1500 x 1000 / 500 = 3000; 1000 - 0.2 x 3000 = 400."""
    estimator = RateEstimator(Gains(), batch_interval_ms=500.0)
    estimator.learn(1_000, 1000, 1000, 0)
    assert estimator.learn(2_000, 1000, 1000, 1500) == 400


def test_all_three_errors_together() -> None:
    """Gains 0.5, 0.1, 2.0. Set to 2000 at 1 s, error 0.
    At 3 s: 1000 in 1000 ms, waited 500. Rate 1000; error 1000; historical 500 x 1000 / 1000 = 500; change (1000 - 0) / 2 s
    = 500. 2000 - 0.5 x 1000 - 0.1 x 500 - 2 x 500 = 450.
    At 7 s: 600 in 2000 ms, waited 0. Rate 300; error 450 - 300 = 150; change (150 - 1000) / 4 s = -212.5.
    450 - 0.5 x 150 - 0 + 2 x 212.5 = 800."""
    estimator = RateEstimator(Gains(0.5, 0.1, 2.0, 1.0), batch_interval_ms=INTERVAL_MS)
    assert estimator.learn(1_000, 2000, 1000, 900) is None
    assert estimator.learn(3_000, 1000, 1000, 500) == 450
    assert estimator.learn(7_000, 600, 2000, 0) == 800


def test_a_clock_set_back_costs_one_batch_and_not_all_until_it_catches_up() -> None:
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS)
    estimator.learn(10_000_000, 1000, 1000, 0)
    assert estimator.learn(9_999_000, 500, 1000, 0) is None, "it ended before the last one, side by side with it"
    assert estimator.learn(10_001_000, 1000, 1000, 0) == 1000
    assert estimator.learn(1_000_000, 500, 1000, 0) is None
    assert estimator.learn(1_001_000, 500, 1000, 0) == 500


def test_the_rate_does_not_fall_below_its_minimum_and_rises_from_there() -> None:
    """Set to 1000. 100 records in 2000 ms, rate 50: 1000 - 950 = 50, so 100. Then 1000 in 500 ms: 100 + 1900 = 2000."""
    estimator = RateEstimator(Gains(min_rate=100), batch_interval_ms=INTERVAL_MS)
    estimator.learn(1_000, 1000, 1000, 0)
    assert estimator.learn(2_000, 100, 2000, 0) == 100
    assert estimator.learn(3_000, 1000, 500, 0) == 2000


@pytest.mark.parametrize(
    ("time_ms", "records", "processing_ms"), [(2_000, 0, 500), (2_000, 500, 0), (2_000, 500, -3), (1_000, 500, 500)]
)
def test_nothing_is_learned_from_a_batch_without_records_or_delay_or_out_of_order(
    time_ms: int, records: int, processing_ms: int
) -> None:
    """The one after it is judged as if it had not been: set to 1000, then 800 in 1000 ms gives 800."""
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS)
    estimator.learn(1_000, 1000, 1000, 0)
    assert estimator.learn(time_ms, records, processing_ms, 0) is None
    assert estimator.learn(3_000, 800, 1000, 0) == 800


def test_a_learned_rate_is_used_immediately() -> None:
    """Learned 1000 before a restart: the first batch, 400 in 1000 ms after 250 ms of waiting, is no first batch.
    error 600; historical 250 x 400 / 1000 = 100; 1000 - 600 - 0.2 x 100 = 380."""
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS, learned=1000.0, learned_ms=500)
    assert estimator.learn(1_000, 400, 1000, 250) == 380


def test_a_clock_that_went_back_is_no_negative_wait() -> None:
    estimator = RateEstimator(Gains(), batch_interval_ms=INTERVAL_MS, learned=1000.0)
    assert estimator.learn(1_000, 1000, 1000, -5000) == 1000


@pytest.mark.parametrize(
    ("old", "new", "significant"), [(0, 1, True), (100, 104.9, False), (100, 106, True), (100, 94, True)]
)
def test_a_rate_is_another_one_beyond_five_percent(old: float, new: float, significant: bool) -> None:
    assert is_significant(old, new) is significant
