"""The week of batches: what is sampled of it, and that growth is noticed."""

from __future__ import annotations

from pathlib import Path

from tests.jepsen import week
from tests.jepsen.soak import judge
from tests.jepsen.story import Story


def test_each_sample_has_all_units_and_a_collection_that_grows_is_named(tmp_path: Path) -> None:
    series = week.read(week.sample(tmp_path, 80, samples=20))
    assert {unit for _, unit in series} == week.FLOORS.keys()
    times = [at for at, _ in series["memory", "MB"]]
    assert times == [4.0 * number for number in range(1, 21)]
    # as if it were a day, in which one collection gets an entry for each batch
    later = {key: [(at * 1000, 7.0) for at in times] for key in series}
    assert judge(later, Story(tmp_path, quiet=True), week.FLOORS)
    later["state.epochs", "entries"] = [(at * 1000, at * 1000) for at in times]
    assert not judge(later, Story(tmp_path, quiet=True), week.FLOORS)
    assert (tmp_path / "story.txt").read_text().endswith("GROWING: state.epochs\n")
