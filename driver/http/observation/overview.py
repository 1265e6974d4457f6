"""The stream at a glance: state, problems, counts, and the steps on the way of a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from driver.decisions.problems import in_answer
from driver.http.observation.snapshot import Snapshot
from driver.http.observation.steps import Rates, steps
from forebay import messages as m

#: maximum number of problems, and of pending ones, in an overview; the counts name all
PROBLEMS_MAX = 10
#: missing heartbeats after which a receiver counts as silent
HEARTBEATS_MISSED = 2
#: maximum characters of each text in an overview, and of texts of the last batch
LENGTH_MAX, TEXTS_MAX = 300, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverIdentity:
    """What an overview says about the driver itself, which does not change while it leads."""

    stream: str
    release: str
    job: str = ""
    batch_interval_ms: int = 0
    heartbeat_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentWork:
    """What an overview says about the present work, besides the snapshot. ``spark_ui``: URL of the Spark UI; "": it is off."""

    rates: Rates
    last_batch: m.BatchEntry | None = None
    spark_ui: str = ""


def overview(snapshot: Snapshot, identity: DriverIdentity, work: PresentWork) -> m.OverviewAnswer:
    """Return the overview of a driver that leads."""
    found, around, totals = problems(snapshot), snapshot.around, snapshot.totals
    pending = around.verdict.pending
    partitions = snapshot.tracked_partitions
    return m.OverviewAnswer(
        time_ms=snapshot.now_ms,
        stream=identity.stream,
        release=identity.release,
        state=around.state,
        detail=around.detail,
        driver_epoch=snapshot.driver_epoch,
        spark_ui=work.spark_ui,
        job=identity.job,
        batch_interval_ms=identity.batch_interval_ms,
        heartbeat_seconds=identity.heartbeat_seconds,
        paused=snapshot.pause is not None,
        pause_cause=snapshot.pause.cause if snapshot.pause is not None else "",
        problems=tuple(map(_short, found[:PROBLEMS_MAX])),
        problem_count=len(found),
        pending=tuple(map(_short, pending[:PROBLEMS_MAX])),
        pending_count=len(pending),
        steps=steps(snapshot, work.rates, work.last_batch),
        partitions=_counts(partition.state for partition in partitions),
        receivers=_counts(receiver_state(receiver, identity.heartbeat_seconds) for receiver in snapshot.receivers),
        hosts=_counts(agent_state(agent, around.receiver_timeout) for agent in snapshot.agents),
        batches={**_counts(batch.state for batch in snapshot.unfinished), "completed": totals.batches_completed},
        totals=m.Totals(
            records_taken=totals.records_taken,
            records_completed=totals.records_completed,
            batches_completed=totals.batches_completed,
            bytes=totals.wal_bytes,
        ),
        waiting_blocks=totals.waiting_blocks,
        waiting_records=totals.waiting_records,
        last_batch=None if work.last_batch is None else _short_batch(work.last_batch),
        replay=snapshot.replay,
        rate=snapshot.rate,
        lag_records=lag_records(partitions),
        lag_seconds=lag_seconds(partitions),
    )


def late(answer: m.OverviewAnswer, problem: m.Problem) -> m.OverviewAnswer:
    """Return the last overview of a driver whose decision loop does not answer, with the reason. Its ``time_ms`` stays, so it
    shows its age."""
    return msgspec.structs.replace(
        answer, state="waiting", detail=problem.cause, problems=(problem, *answer.problems)[:PROBLEMS_MAX]
    )


def problems(snapshot: Snapshot) -> tuple[m.Problem, ...]:
    """Return all problems of the stream, as ``StatusAnswer.problems``."""
    around = snapshot.around
    named = m.StatusAnswer(  # only what names problems
        stream="",
        release="",
        timeline=0,
        driver_epoch=0,
        state=around.state,
        detail=around.detail,
        topic_ids_known=True,
        waiting_blocks=0,
        waiting_records=0,
        batches_completed=0,
        records_completed=0,
        partitions=tuple(partition for partition in snapshot.tracked_partitions if partition.fault),
        managed=snapshot.managed,
        batches=snapshot.unfinished,
        cursors=tuple(cursor for cursor in snapshot.tracked_cursors if cursor.state == "expired"),
    )
    return (*around.verdict.problems, *in_answer(named))


def receiver_state(receiver: m.TrackedReceiver, heartbeat_seconds: float) -> str:
    """Return its state, or ``silent`` if two of its heartbeats are missing and it is not lost yet."""
    is_silent = receiver.silent_seconds > HEARTBEATS_MISSED * heartbeat_seconds
    return "silent" if is_silent and receiver.state not in ("lost", "fenced") else receiver.state


def agent_state(agent: m.TrackedAgent, receiver_timeout: float) -> str:
    """Return active, draining, or lost."""
    return "lost" if agent.silent_seconds > receiver_timeout else agent.state


def lag_records(partitions: Iterable[m.TrackedPartition]) -> int | None:
    """Return the records that are not taken in; None if that of one partition is unknown."""
    lags = [partition.lag for partition in partitions]
    return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


def lag_seconds(partitions: Iterable[m.TrackedPartition]) -> float | None:
    """Return the age of the oldest record that is not completed; None if that of one partition is unknown."""
    ages = [partition.lag_seconds for partition in partitions]
    return None if not ages or None in ages else max(age for age in ages if age is not None)


def _counts(states: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(states).items()))


def _short(problem: m.Problem) -> m.Problem:
    if len(problem.cause) <= LENGTH_MAX and len(problem.command) <= LENGTH_MAX:
        return problem
    return msgspec.structs.replace(problem, cause=_cut(problem.cause), command=_cut(problem.command))


def _short_batch(batch: m.BatchEntry) -> m.BatchEntry:
    return msgspec.structs.replace(
        batch,
        detail=_cut(batch.detail),
        place=_cut(batch.place),
        outputs=tuple(map(_cut, batch.outputs[:TEXTS_MAX])),
        written=tuple(map(_cut, batch.written[:TEXTS_MAX])),
    )


def _cut(text: str) -> str:
    return text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 1] + "…"
