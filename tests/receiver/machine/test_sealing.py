"""When a block is sealed early, for the driver's next batch."""

from __future__ import annotations

import pytest

from forebay.messages import BlockResult
from forebay.model.units import Duration
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.delivery.sealing import Sealing
from tests.receiver.stage import P0, Stage, bounds


def sealing() -> Sealing:
    return Sealing(settings=ReceiverSettings(block_interval=Duration(1.0)))


def test_without_an_answer_a_block_is_sealed_after_its_interval() -> None:
    assert sealing().due_at(5.0) == 6.0


def test_a_block_is_sealed_before_the_next_batch_by_the_time_that_its_way_takes() -> None:
    s = sealing()
    s.answered(9.9, 400, 1_000, 10.0)  # it took 0.1 s to the answer; half of this is learned
    assert s.due_at(10.0) == pytest.approx(10.35)
    s.answered(9.9, 400, 1_000, 10.0)
    assert s.due_at(10.0) == pytest.approx(10.325), "what grows is learned soon"
    s.answered(10.0, 400, 1_000, 10.0)
    assert s.due_at(10.0) == pytest.approx(10.32725), "what shrinks is learned later"


def test_a_block_that_would_miss_the_batch_is_sealed_for_the_one_after_it() -> None:
    s = sealing()
    s.answered(9.8, 50, 300, 10.0)
    assert s.due_at(10.0) == pytest.approx(10.25)


def test_one_block_is_sealed_early_for_each_answer() -> None:
    """Else each poll would make a block while the driver is expected to be free."""
    s = sealing()
    s.answered(10.0, 0, 0, 10.0)
    s.sealed(10.05)
    assert s.due_at(10.1) == pytest.approx(11.1)


def test_a_block_that_is_sealed_before_does_not_take_the_early_seal_of_the_next_one() -> None:
    """With short blocks, several are sealed before the driver's next batch. The last one has to arrive in time too."""
    s = sealing()
    s.answered(10.0, 400, 1_000, 10.0)
    s.sealed(10.2)
    assert s.due_at(10.2) == pytest.approx(10.4)
    s.sealed(10.4)
    assert s.due_at(10.4) == pytest.approx(11.4)


def test_a_block_after_a_silence_is_sealed_soon_but_never_as_a_tiny_one() -> None:
    s = sealing()
    s.answered(10.0, 200, 200, 10.0)
    assert s.due_at(50.0) == pytest.approx(50.05)


def test_the_first_records_of_a_block_are_awaited_until_the_early_seal() -> None:
    """Else a poll that began without an open block returns after the seal, and what it gathered misses the batch."""
    s = sealing()
    assert s.awaited_until(10.0) == 11.0
    s.answered(10.0, 400, 1_000, 10.0)
    assert s.awaited_until(10.1) == pytest.approx(10.4)
    assert s.awaited_until(10.5) == 11.5, "a stream without records is not polled more often because a batch has passed"
    s.answered(10.5, 5_000, 1_000, 10.5)
    assert s.awaited_until(10.5) == 11.5


def test_a_driver_that_expects_no_batch_or_a_late_one_changes_nothing() -> None:
    """An older release, or a pause; and the answer is not trusted with more than the interval."""
    s = sealing()
    s.answered(10.0, 0, 0, 10.0)
    s.answered(10.0, -1, 0, 10.0)
    assert s.due_at(10.0) == 11.0
    s.answered(10.0, 1 << 60, 1 << 60, 10.0)
    assert s.due_at(10.0) == 11.0


def test_the_way_of_a_block_that_took_long_is_bounded() -> None:
    """A store that was away for a minute must not have blocks sealed a minute early."""
    s = sealing()
    s.answered(0.0, 0, 0, 60.0)
    s.answered(60.0, 900, 1_000, 60.0)
    assert s.due_at(60.0) >= 60.0 + 0.9 - 0.5


def test_the_machine_seals_early_once_for_each_answer() -> None:
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0)[P0]
    stage.poll(start, range(5))
    stage.seal_and_store()
    report = stage.one(act.Report)
    accepted = BlockResult(block_id=report.message.blocks[0].id, accepted=True)
    stage.tell(inp.ReportAnswered(report.request, (accepted,), 300, 1_000))
    assert stage.machine.seconds_until_seal(stage.now) == pytest.approx(0.3), "a poll without an open block ends then"
    stage.poll(start, range(5, 9))
    assert stage.machine.seconds_until_seal(stage.now) == pytest.approx(0.3)
    assert not stage.wait(0.25).sealed()
    (second,) = stage.wait(0.05).sealed()
    assert bounds(second, P0) == (5, 9)
    stage.poll(start, range(9, 10))
    assert stage.machine.seconds_until_seal(stage.now) == 1.0
