"""A stream's real processes, and what a test asks of them and checks.

A :class:`Cluster` starts ``forebay driver``, ``agent`` and ``receiver`` as child processes of the test
(:class:`tests.support.processes.services.Services`). Checks use both what the job saw (tests/support/processes/witness.py) and
the product's audit.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from deploy.main import main as command_line
from driver.journal import history
from driver.journal.log import reading as journal
from driver.journal.state import State
from forebay.kafka.client.admin import KafkaAdmin
from forebay.messages import BatchEntry, StatusAnswer, TrackedPartition, TrackedReceiver
from forebay.model.errors import ForebayError
from forebay.model.values import Block, TopicPartition
from recovery.audit import AuditReport, audit
from tests.support.kafka.flow import Flow, Truth
from tests.support.processes import forked, witness
from tests.support.processes.services import PATIENCE_SECONDS, Services
from wal.storage import Storage, open_storage

#: keys of ``[driver]`` of a stream in which batches are made behind a job that runs
AHEAD: dict[str, Any] = {"max_queued_batches": 4}


class Cluster(Services):
    """A stream's processes, its status, its journal and WAL, and the checks of what it did."""

    # ---- states to test in ---------------------------------------------------------------------------------------

    def hold_a_job(self) -> int:
        """Wait until a job that has read its rows is held, and return its batch. Deleting the file ``hold`` releases it."""
        for path in self.seen.glob("*.held"):
            path.unlink()
        (self.folder / "hold").touch()
        return int(self.wait(lambda: next(self.seen.glob("*.held"), None), "a job held in the middle").stem)

    def allocate_behind_a_held_job(self) -> None:
        """Wait until a job is held and the next batch is allocated behind it. The stream's driver has the keys of ``AHEAD``."""
        self.hold_a_job()
        self.wait(lambda: (s := self.status()) and any(b.state == "queued" for b in s.batches), "a batch in the queue")

    def killed_behind_a_held_job(self, flow: Flow, *names: str) -> State:
        """Stop ``flow``, kill ``names`` while a batch is in work and others wait behind it, and return the journal's state."""
        self.allocate_behind_a_held_job()
        flow.stop()
        for name in names:
            self.kill9(name)
        return self.state()

    def damage(self, block: Block) -> None:
        """Flip one bit in the block's frame in the WAL, which must be a folder."""
        path = Path(self.wal_storage.url.removeprefix("file://")) / block.handle.path
        data = bytearray(path.read_bytes())
        data[block.handle.offset + block.handle.length - 3] ^= 1
        path.write_bytes(data)

    # ---- what it says ------------------------------------------------------------------------------------------------

    def status(self) -> StatusAnswer | None:
        """Return the driver's status; None while no driver answers."""
        try:
            answer = self._client.get("/v1/status", StatusAnswer)
        except ForebayError as error:
            self._last_status = str(error)
            return None
        self._last_status = repr(answer)
        return answer

    def health(self) -> str:
        """Return the driver's message why it is not ready; "" if it is ready."""
        try:
            self._client.request("GET", "/v1/health")
        except ForebayError as error:
            return str(error)
        return ""

    def partition(self, topic: str, number: int) -> TrackedPartition | None:
        status = self.status()
        return (
            None
            if status is None
            else next((p for p in status.partitions if (p.topic, p.partition) == (topic, number)), None)
        )

    def receiver(self, name: str) -> TrackedReceiver | None:
        status = self.status()
        return None if status is None else next((r for r in status.receivers if r.receiver_id == name), None)

    def batches(self) -> tuple[BatchEntry, ...]:
        """Return the unfinished batches and the last completed ones, as status shows them."""
        status = self.status()
        return status.batches if status is not None else ()

    def owners(self) -> dict[tuple[str, int], str]:
        """Return (topic, partition) → receiver, for claimed partitions."""
        status = self.status()
        return {(p.topic, p.partition): p.receiver_id for p in status.partitions if p.receiver_id} if status else {}

    def await_completed(self, ends: Mapping[tuple[str, int], int], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until every partition is completed up to its end: lag 0."""

        def done() -> bool:
            status = self.status()
            if status is None:
                return False
            completed = {(p.topic, p.partition): p.completed for p in status.partitions}
            return all(completed.get(tp, -1) >= end for tp, end in ends.items()) and not status.waiting_blocks

        self.wait(done, f"completion up to {dict(ends)}", seconds)

    def await_records(self, count: int) -> None:
        """Wait until ``count`` records are in completed batches."""
        self.wait(
            lambda: (status := self.status()) is not None and status.records_completed >= count,
            f"{count} records completed",
        )

    def command(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``forebay`` as a user would."""
        return forked.run(
            ("--config", str(self.config), *arguments),
            folder=self.folder,
            environment={**os.environ, **(environment or {})},
            seconds=PATIENCE_SECONDS,
        )

    # ---- what it did -------------------------------------------------------------------------------------------------

    @cached_property
    def journal_storage(self) -> Storage:
        return open_storage(self._sections["driver"]["journal"], self.storage)

    @cached_property
    def wal_storage(self) -> Storage:
        return open_storage(self._sections["wal"]["url"], self.storage)

    def state(self) -> State:
        """Return the journal's state, read as the audit reads it."""
        state = journal.read_beside_a_writer(self.journal_storage, self.stream).state
        assert state is not None, "there is no journal"
        return state

    def needed(self) -> list[Block]:
        """Return the blocks of unfinished batches, in the order in which these run."""
        state = self.state()
        return [state.blocks[block] for batch in state.unfinished() for block in batch.block_ids]

    def audit(self) -> AuditReport:
        return audit(self.journal_storage, self.stream)

    def completed_batches(self) -> set[int]:
        """Return the ids by journal and history; the journal is read first, because batches move from it to the history."""
        in_state = {batch.batch_id for batch in self.state().batches.values() if batch.completed_ms is not None}
        return in_state | {batch.batch_id for batch in history.read(self.journal_storage, self.stream)}

    def finished_batches(self) -> list[history.FinishedBatch]:
        """Return completed batches with their ranges, in order.

        Of those that the journal's state still holds, only the completed prefix is returned.
        """
        found = {batch.batch_id: batch for batch in history.finished(self.state(), windows=False)}
        found |= {batch.batch_id: batch for batch in history.read(self.journal_storage, self.stream)}
        return [found[batch_id] for batch_id in sorted(found)]

    def records_seen(self) -> pa.Table:
        """Return the rows of all completed batches as the job saw them."""
        return witness.seen_by(self.seen, sorted(self.completed_batches()))

    def check(self, truth: Truth) -> AuditReport:
        """Check the invariants INV-1, INV-2 and INV-3.

        Every produced record is in exactly one completed batch with its key and value; the audit is clean, by function and by
        command; nothing is committed to Kafka beyond the journal's position. Each batch that a job completed has its statistics.
        """
        report = self.check_audit()
        self.check_statistics()
        witness.assert_same_records(self.records_seen(), truth.table())
        self.check_commits()
        return report

    def check_statistics(self) -> None:
        """Check that the statistics of each completed batch count the records and bytes of its ranges (INV-7)."""
        for batch in self.finished_batches():
            if batch.skipped:
                continue
            counted = batch.statistics
            assert counted is not None, batch
            assert counted.records == batch.records == sum(r.records for r in batch.ranges)
            assert counted.bytes == sum(r.bytes or 0 for r in batch.ranges)
            assert counted.total_delay_ms >= counted.scheduling_delay_ms

    def check_audit(self) -> AuditReport:
        report = self.audit()
        assert report.clean, f"the audit found {report.findings}\n{self.describe()}"
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = command_line(["--config", str(self.config), "audit"])
        assert code == 0, f"forebay audit: {code}\n{output.getvalue()}"
        return report

    def check_commits(self) -> None:
        """INV-1: what is committed to Kafka is at or below the journal's position, in the same incarnation."""
        with KafkaAdmin(self.options) as admin:
            partitions = [TopicPartition(p.topic, p.partition) for p in self.state().partitions.values()]
            committed = admin.committed(f"forebay.{self.stream}", partitions)
        state = self.state()  # read after the commits, which follow the positions
        for tp, commit in committed.items():
            partition = state.partition(tp)
            assert partition is not None
            if commit.metadata == f"forebay:{state.timeline}:{partition.incarnation.number}":
                assert commit.offset <= partition.position, (
                    f"{tp}: committed {commit.offset} beyond {partition.position}"
                )
