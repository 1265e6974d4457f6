"""What can happen next to a process of a receiver: the next step of each of its threads, and faults."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from forebay.model.errors import UnreachableError
from tests.simulation.receiver_threads import Wait
from tests.simulation.scheduler import Step, as_fault
from tests.simulation.shells import Stalled
from tests.simulation.upload_faults import ANSWERED, FAULTS, LATE

if TYPE_CHECKING:
    from tests.simulation.receiver_process import ReceiverProcess


class ReceiverSteps:
    """The possible steps of one receiver process."""

    def __init__(self, process: ReceiverProcess) -> None:
        self._process = process
        self._offered = self._all()

    def _all(self) -> dict[str, Step]:
        """Everything that may happen to this process, by name: most of it is offered again before each step."""
        process = self._process
        name, quiet = process.name, process.world.options.quiet
        kill = f"{name} kill"
        threads = {
            "tick": ("polling", 4),
            "source": ("polling", 40),
            "poll": ("polling", 30),
            "group": ("polling", 15),
            "encode": ("encode", 30),
            "append": ("write", 30),
            "sync": ("write", 20),
            "retry": ("write", 10),
            "goes-on": ("write", 20),
            "copy-own": ("copy", 20),
            "copy-own-again": ("copy", 20),
            "copy-second": ("write", 20),
            "copy-without-host": ("write", 1),
            "ask-broker": ("broker", 20),
            ANSWERED: ("write", 40),
        }
        steps = {
            **{
                label: Step(f"{name} {label}", partial(process.go_on, thread, label), weight)
                for label, (thread, weight) in threads.items()
            },
            "commit": Step(f"{name} commit", process.source.take_commit, 15),
            **{
                f"fetch {tp}": Step(f"{name} fetch {tp}", partial(process.source.fetch, tp, 4), 15)
                for tp in process.world.kafka.partitions()
            },
        }
        append, sync, upload = (partial(process.go_on, "write", label) for label in ("append", "sync", ANSWERED))
        no_answer = UnreachableError("the broker did not answer")
        faults = {
            # steps that make orphans are as likely as steps that make progress, in a quiet run too
            "kill": Step(kill, process.kill, 2),
            "kill-unreported": Step(kill, process.kill, 8 * quiet),
            "pause": Step(f"{name} pause", process.pause, 2),
            "drain": Step(f"{name} drain", process.service.drain, 1),
            "refused": Step(f"{name} copy-second-refused", partial(process.go_on, "write", "refused"), 20 * quiet),
            "copy-unanswered": Step(
                f"{name} copy-second-unanswered", partial(process.go_on, "write", "unanswered"), 20 * quiet
            ),
            **{
                label: Step(f"{name} upload-{label}", partial(process.go_on, "write", label), 2 * quiet)
                for label in (*FAULTS, LATE)
            },
            "upload-crash": Step(f"{name} upload-crash", partial(process.crash_in, upload), 2 * quiet, range(1, 4)),
            "append-crash": Step(f"{name} append-crash", partial(process.crash_in, append), 10, range(1, 8)),
            "append-fails": Step(f"{name} append-fails", partial(process.fail_in, append, "append"), 6),
            "sync-crash": Step(f"{name} sync-crash", partial(process.crash_in, sync), 10, range(1, 6)),
            "sync-fails": Step(f"{name} sync-fails", partial(process.fail_in, sync, "sync"), 6),
            "sync-lands-now": Step(f"{name} sync-lands-now", partial(process.fail_in, sync, "sync", "now"), 5),
            "sync-lands-late": Step(f"{name} sync-lands-late", partial(process.fail_in, sync, "sync", "late"), 5),
            "ask-broker-fails": Step(f"{name} ask-broker-fails", partial(process.go_on, "broker", no_answer), 6),
            "commit-lost": Step(f"{name} commit-lost", process.source.lose_commit, 6),
        }
        return {**steps, **{key: as_fault(step) for key, step in faults.items()}}

    def steps(self) -> Iterator[Step]:
        process, offered = self._process, self._offered
        source = process.source
        for thread, wanted in process.wanted.items():
            if type(wanted) is str:
                yield offered["copy-own-again" if thread == "copy" else wanted]  # it retries
            elif type(wanted) is Wait:
                for name in wanted.steps():
                    yield offered[name]
            elif isinstance(wanted, Stalled) and wanted.is_over:
                yield offered["goes-on"]
        if source.is_subscribed and not source.in_callback:
            for tp in source.reading:
                if source.can_fetch(tp):
                    yield offered[f"fetch {tp}"]
        if source.commits:
            yield offered["commit"]

    def fault_steps(self) -> Iterator[Step]:
        process, offered = self._process, self._offered
        yield offered["kill-unreported" if process.has_unreported else "kill"]
        yield offered["pause"]
        yield offered["drain"]
        wanted = process.wanted["write"]
        if wanted == "sync" and process.world.bucket is None:  # else a request fails
            yield offered["sync-crash"]
            yield offered["sync-fails"]
            if not process.world.wal.appendable:
                yield offered["sync-lands-now"]
                yield offered["sync-lands-late"]
        elif type(wanted) is Wait:
            for name in wanted.steps():
                if name == "append" and not process.world.options.copies:
                    yield offered["append-crash"]
                    yield offered["append-fails"]
                elif name == "copy-second":
                    yield offered["refused"]
                    yield offered["copy-unanswered"]
                elif name == ANSWERED:
                    yield from map(offered.__getitem__, FAULTS)
                    if process.is_creating:
                        yield offered[LATE]
                        yield offered["upload-crash"]
        if process.wanted["broker"] == "ask-broker":
            yield offered["ask-broker-fails"]
        if process.source.commits:
            yield offered["commit-lost"]
