"""The mutation score: each guard can be removed, and a fixed share of the removals is noticed (``make sim-mutations``: all)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import mutations
from tests.simulation.guards import GUARDS, Guard
from tests.simulation.mutations import ROOT, Score, measure, table, without

#: guards whose removals the simulation notices within seconds
SHARE = (
    "epoch-of-a-receiver",
    "check-after-the-sync",
    "new-epoch-for-a-new-process",
    "past-instance-registers-again",
)
#: guards whose removals the simulation does not notice within its budget, and the guard's test notices within seconds
TESTED = (
    "polled-under-an-older-generation",
    "claim-only-after-a-commit",
    "check-before-a-refusal",  # its test leaves a thread when it fails
)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_guard_is_there_and_can_be_removed(guard: Guard) -> None:
    compile(without(guard, (ROOT / guard.path).read_text()), guard.path, "exec")
    assert guard.test and (ROOT / guard.test).exists()


def test_guards_have_names_of_their_own() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS) >= 50


@pytest.mark.parametrize("name", SHARE)
def test_simulation_notices_the_removal(name: str) -> None:
    score = measure(next(guard for guard in GUARDS if guard.name == name))
    assert score.by == "simulation", score


@pytest.mark.parametrize("name", TESTED)
def test_named_test_notices_the_removal(name: str) -> None:
    score = measure(next(guard for guard in GUARDS if guard.name == name), 0)
    assert score.by == "test", score


def test_guard_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        without(GUARDS[0], "")


def test_table_begins_with_what_was_not_noticed() -> None:
    scores = [Score(GUARDS[0].name, "simulation", 1.0, 20, "INV-2"), Score(GUARDS[1].name, "", 30.0, 300, "")]
    lines = table(scores).splitlines()
    assert lines[0] == "1 of 2 removals were noticed, 1 of them by the simulation."
    assert lines[4] == f"| {GUARDS[1].name} | **nothing** | 30.0 | 300 |"


def test_an_unknown_share_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mutations.md"
    assert mutations.main(["--share", "500/500", "--out", str(out)]) == 0
    assert out.read_text().startswith("0 of 0 removals")
    assert str(out) in capsys.readouterr().out
