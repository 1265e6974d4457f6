"""A follower's batch in several runs of a joint job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from driver.batches.job.batch import Batch
from driver.batches.joint.streams import JointStreams, Offer
from driver.outputs import ParquetOutput
from forebay.model.errors import UsageError
from tests.support.processes.output_process import Turn, batch_of, rows_of


class NoRows:
    def over(self, work: Any) -> NoRows:
        return self


def leading(output: str = "first", *done: str) -> Batch:
    """One run of the leader's batch. ``done``: its outputs that are journalled."""
    return Batch(replace(batch_of(Turn(7))._work, output=output, outputs=frozenset(done)), cast(Any, NoRows()))


def offer_of(turn: Turn) -> Offer:
    return Offer(Batch(batch_of(turn)._work, cast(Any, NoRows())))


def given(streams: JointStreams, leader: Batch, turn: Turn) -> Batch:
    taken = streams.take(leader, {"clicks": turn.batch_id})
    assert taken is not None
    return taken["clicks"]


def test_output_helper_writes_a_followers_batch_again_after_a_failed_attempt(tmp_path: Path) -> None:
    """INV-5: refused at each attempt, the batch would never be completed."""
    turn, output = Turn(1), ParquetOutput(f"file://{tmp_path}")
    streams, offer = JointStreams("orders", ["clicks"]), offer_of(turn)
    with streams.offered("clicks", offer):
        batch = given(streams, leading(), turn)
        assert output.write(batch, rows_of(turn)).rows == 60
        with pytest.raises(UsageError, match="writes a batch once"):
            output.write(batch, rows_of(turn))
        again = output.write(given(streams, leading(), turn), rows_of(turn))
        assert "is written already" in again.skipped
    assert offer.batch.noted == (again,), "status shows the last run alone"


def test_second_output_of_a_joint_job_can_not_write_with_the_helper_of_the_first(tmp_path: Path) -> None:
    """INV-5: the helper would take its rows for written ones, also at its second attempt."""
    turn = Turn(1)
    one, two = (ParquetOutput(f"file://{tmp_path}/{name}", name=name) for name in ("one", "two"))
    streams, offer = JointStreams("orders", ["clicks"]), offer_of(turn)
    with streams.offered("clicks", offer):
        one.write(given(streams, leading("first"), turn), rows_of(turn))
        for _ in range(2):
            batch = given(streams, leading("second", "first"), turn)
            with pytest.raises(UsageError, match="writes a batch once"):
                one.write(batch, rows_of(turn))
            two.write(batch, rows_of(turn))
    assert [written.output for written in offer.batch.noted] == ["one", "two"]
