"""A series that grows is found, and one that only varies is not."""

from __future__ import annotations

from random import Random

import pytest

from tests.jepsen.trend import POINTS_MIN, SECONDS_MIN, is_too_short, trend


def series(growth: float, noise: float, samples: int = 600, seed: int = 1) -> list[tuple[float, float]]:
    """Around 100, and ``growth`` more at the end."""
    draw = Random(seed)
    return [(at * 5.0, 100.0 + growth * at / samples + draw.gauss(0.0, noise)) for at in range(samples)]


@pytest.mark.parametrize("seed", range(5))
def test_growth_behind_noise_is_found(seed: int) -> None:
    found = trend(series(growth=40.0, noise=20.0, seed=seed))
    assert found.grows(floor=5.0)
    assert found.growth == pytest.approx(30.0, abs=10.0)  # a quarter is warm-up


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_flat(seed: int) -> None:
    assert not trend(series(growth=0.0, noise=20.0, seed=seed)).grows(floor=0.0)


def test_certain_but_small_growth_is_flat() -> None:
    found = trend(series(growth=5.0, noise=0.1))
    assert found.p < 1e-6
    assert not found.grows(floor=0.0)


def test_growth_below_the_floor_is_flat() -> None:
    grown = [(float(at), 2.0 + at / 100) for at in range(100)]
    assert trend(grown).grows(floor=0.1)
    assert not trend(grown).grows(floor=1.0)


def test_growth_in_the_warm_up_alone_is_flat() -> None:
    warm = [(float(at), min(100.0, at * 10.0)) for at in range(100)]
    assert not trend(warm).grows(floor=0.0)


def test_one_value_all_the_time_is_flat() -> None:
    assert trend([(float(at), 7.0) for at in range(100)]).p == 1.0


def test_short_series_is_not_judged() -> None:
    """In time or in points."""
    assert is_too_short([(600.0 * at, float(at)) for at in range(POINTS_MIN)])
    assert is_too_short([(float(at), float(at)) for at in range(int(SECONDS_MIN))])
    assert not is_too_short([(float(at), float(at)) for at in range(int(SECONDS_MIN) + 1)])


def test_probability_is_that_of_the_mann_kendall_test() -> None:
    """Against the published example of Gilbert (1987), table 16.1 method: n = 12 ascending values have S = 66, Z = 4.46."""
    ascending = [(float(at), float(at)) for at in range(16)]  # 12 after the warm-up
    assert trend(ascending).p == pytest.approx(8.3e-6, rel=0.05)
