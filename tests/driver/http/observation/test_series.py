"""Samples of the recent past: bounded, joined to fewer points, with gaps where nothing was known."""

from __future__ import annotations

from driver.http.observation.series import COARSE, FINE, NAMES, RATE_SECONDS, Mark, RecentRates, Sample, Series

START_MS = 1_700_000_040_000  # begins a minute


def sample(number: int, value: float | None = None) -> Sample:
    return Sample(
        START_MS + number * FINE[0], (value if value is not None else float(number), *[None] * (len(NAMES) - 1))
    )


def test_samples_of_an_hour_are_fine_and_those_of_a_day_are_minutes() -> None:
    """INV-6."""
    series = Series()
    for number in range(6 * 60 * 30):  # 30 hours
        series.add(sample(number))
    last_ms = START_MS + (6 * 60 * 30 - 1) * FINE[0]
    hour = series.answer(last_ms - 3_500_000, 1_500)
    assert hour.step_ms == FINE[0] and len(hour.times_ms) == 351 and hour.times_ms[-1] == last_ms
    day = series.answer(0, 1_500)
    assert day.step_ms == COARSE[0] and len(day.times_ms) == COARSE[1]
    assert day.times_ms[-1] < last_ms and len(day.values[NAMES[0]]) == COARSE[1]
    first = day.times_ms[0]
    assert (last_ms - first) / 3_600_000 > 23.9
    # the mean of the minute that ends there
    number = (first - START_MS) // FINE[0]
    assert day.values[NAMES[0]][0] == number - 2.5


def test_more_samples_than_points_are_joined() -> None:
    series = Series()
    for number in range(100):
        series.add(sample(number))
    answer = series.answer(0, 30)
    assert len(answer.times_ms) == 25 and answer.step_ms == 4 * FINE[0]
    assert answer.values[NAMES[0]][:2] == (1.5, 5.5)
    assert answer.values[NAMES[1]] == (None,) * 25
    assert len(series.answer(0, 1).times_ms) == 1
    assert series.answer(START_MS * 2, 10).times_ms == ()


def test_a_new_driver_shows_fine_samples_before_its_first_minute_is_over() -> None:
    series = Series()
    series.add(sample(0))
    assert series.answer(0, 10).values[NAMES[0]] == (0.0,)


def test_rates_are_those_between_two_marks() -> None:
    before = Mark(now=10.0, now_ms=0, taken=100, completed=50)
    rates = before.rates_until(Mark(now=14.0, now_ms=0, taken=500, completed=50))
    assert (rates.taken, rates.completed) == (100.0, 0.0)
    none = before.rates_until(before)
    assert (none.taken, none.completed) == (None, None)


def test_present_rate_is_that_of_the_last_seconds_however_often_it_is_asked() -> None:
    rates = RecentRates()
    taken = 0
    for tenth in range(1_000):  # 100 per second, and nothing for the last 20 s
        taken += 10 if tenth < 800 else 0
        found = rates.until(Mark(now=tenth / 10, now_ms=0, taken=taken, completed=0))
        if 10 <= tenth < 800:
            assert found.taken == 100.0, tenth
    assert found.taken == 0.0
    assert len(rates._marks) <= RATE_SECONDS + 2
    seldom = RecentRates()
    assert seldom.until(Mark(now=0.0, now_ms=0, taken=0, completed=0)).taken is None
    for minute in range(1, 4):
        assert seldom.until(Mark(now=minute * 60.0, now_ms=0, taken=minute * 60, completed=0)).taken == 1.0
