"""The local engine: runs the job in the driver's process, without Spark. For small streams, tests and machines without Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import dead_letter_plan
from driver.batches.job.engine import Job
from driver.batches.job.keyed_state import KeyedState, LocalShards, ShardTasks, StateOptions, StateRun
from driver.batches.job.work import BatchWork
from driver.batches.tasks.decoding import DeadLetterPlan, Decoder, decode_task
from driver.batches.tasks.reading import Count, read_task
from forebay.model.errors import UsageError
from forebay.security.access import Access
from forebay.settings.schema import NO_WAL, Settings
from forebay.sources.kind import source_kind
from wal.reading import ReadPlan, TierCounts


def read_plan(settings: Settings, work: BatchWork, agent_urls: Mapping[str, str]) -> ReadPlan:
    """Return how tasks read the blocks of ``work``."""
    return ReadPlan(
        wal_url=settings.wal.url,
        storage=settings.storage,
        blocks_directory=settings.agent.blocks,
        agent_urls=dict(agent_urls),
        lost=work.lost,
        headers=work.headers,
        key_file=settings.wal.key_file,
        kafka=source_kind(settings).kafka_access(),
        topic_ids=work.topic_ids,
        access=Access.of_tasks(settings),
        store_back=settings.agent.store_back,
    )


def open_state(work: BatchWork, plan: ReadPlan, options: StateOptions, tasks: ShardTasks) -> KeyedState:
    """Open a keyed state in the WAL's store. Raises UsageError in a stream without a WAL."""
    if plan.wal_url == NO_WAL:
        raise UsageError(f"state {options.name!r} is kept in the WAL's store, and this stream has no WAL: set wal.url")
    run = StateRun(
        stream=work.stream,
        batch_id=work.batch_id,
        epoch=work.epoch,
        time_ms=work.time_ms,
        version=work.versions.get(options.name),
        url=plan.wal_url,
        storage=plan.storage,
        key_file=plan.key_file,
    )
    return KeyedState(run, options, tasks)


class LocalEngine:
    """Runs jobs in this process. ``agent_urls``: returns host → URL of the agents; called at the start of each run."""

    def __init__(self, settings: Settings, agent_urls: Callable[[], Mapping[str, str]]) -> None:
        self._settings = settings
        self._agent_urls = agent_urls

    @property
    def parallelism(self) -> int:
        return 1

    @property
    def application(self) -> tuple[str, str]:
        return ("", "")

    @property
    def ui_url(self) -> str:
        return ""

    def start(self) -> None:
        """Do nothing: there is nothing to start."""

    def warm(self) -> None:
        """Do nothing: the first batch is as fast as later ones."""

    def await_ready(self, work: BatchWork) -> bool:
        """Return False: no batch has to wait."""
        return False

    def check(self) -> None:
        """Do nothing: the engine is this process."""

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        """Run the job as ``driver.batches.job.engine.Engine.run``."""
        counter = Counter()
        plan_of = partial(read_plan, self._settings, agent_urls=self._agent_urls())
        job(
            Batch(
                work,
                LocalRows(
                    work, plan_of=plan_of, count=counter.add, letters_of=partial(dead_letter_plan, self._settings)
                ),
            )
        )
        return counter.total

    def cancel(self) -> None:
        """Do nothing: the job has no tasks elsewhere."""

    def stop(self) -> None:
        """Do nothing: there is nothing to stop."""


class Counter:
    """Adds up what was read from each tier."""

    def __init__(self) -> None:
        self.total = TierCounts()

    def add(self, counts: TierCounts) -> None:
        self.total += counts


class LocalRows:
    """The rows of one batch, read in this process."""

    def __init__(
        self,
        work: BatchWork,
        *,
        plan_of: Callable[[BatchWork], ReadPlan],
        count: Count,
        letters_of: Callable[[BatchWork], DeadLetterPlan],
    ) -> None:
        self._work = work
        self._letters_of = letters_of
        self._plan_of = plan_of
        self._plan = plan_of(work)
        self._count = count

    def over(self, work: BatchWork) -> LocalRows:
        return LocalRows(work, plan_of=self._plan_of, count=self._count, letters_of=self._letters_of)

    def read(self) -> Iterator[pa.RecordBatch]:
        for task in self._work.tasks:
            yield from read_task(task, self._plan, self._count)

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        place = self._letters_of(self._work)
        for number, task in enumerate(self._work.tasks):
            yield from decode_task(task, number, self._plan, self._count, decoder, place)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        if not isinstance(schema, pa.Schema):
            raise UsageError(f"without Spark the schema must be a pyarrow.Schema, not {type(schema).__name__}")
        return schema

    def state(self, options: StateOptions) -> KeyedState:
        return open_state(self._work, self._plan, options, LocalShards())

    def decode(self, decoder: Decoder) -> Any:
        raise UsageError('batch.decode needs Spark: set driver.engine = "spark", or use batch.read_decoded()')

    def df(self) -> Any:
        raise self._without_spark("df")

    def rdd(self) -> Any:
        raise self._without_spark("rdd")

    def arrow(self) -> Any:
        raise self._without_spark("arrow")

    @staticmethod
    def _without_spark(name: str) -> UsageError:
        return UsageError(f'batch.{name} needs Spark: set driver.engine = "spark", or use batch.read()')
