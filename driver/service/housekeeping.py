"""Housekeeping, in a thread of its own: partitions, commits, snapshot copies, completed positions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from driver.background.catch_up import CatchUp
from driver.background.discovery import ReadKnown, discover, subscription
from driver.journal.state import State
from driver.service.activity import Activity
from driver.service.admission import Admission
from driver.service.commits import CompletedGroup
from driver.service.composition import Parts
from driver.service.options import Given
from driver.tracker.reads import ReadOffsets
from driver.tracker.requests import Read
from forebay.model.errors import SourceError, StoreError, UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.logs import fields
from forebay.sources.kind import source_kind

log = logging.getLogger(__name__)

#: pause between two rounds; while partitions are missing or the driver catches up, the shorter one
ROUND_SECONDS, SHORT_ROUND_SECONDS = 2.0, 0.5
#: pause before discovery is tried again while topics are missing
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ReadNotCaughtUp(Read[list[TopicPartition]]):
    """Reads the partitions that have not reached their target."""

    targets: CatchUp

    def read(self, state: State) -> list[TopicPartition]:
        return self.targets.missing(state)


class Housekeeping:
    """Finds partitions, compares commits with the journal, copies the journal beside the WAL, publishes completed positions.

    ``caught_up``: with ``--until-caught-up``, called when all records that the source held at the start are completed.
    ``failed``: called with the error that ended the thread.
    """

    def __init__(
        self,
        given: Given,
        parts: Parts,
        *,
        activity: Activity,
        admission: Admission,
        is_draining: Callable[[], bool],
        caught_up: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._settings = given.settings
        self._upstream = given.upstream
        self._clock = given.clock
        self._parts = parts
        self._activity = activity
        self._admission = admission
        self._is_draining = is_draining
        self._caught_up = caught_up
        self._failed = failed
        self._completed = CompletedGroup(settings=given.settings, upstream=given.upstream, ask=parts.loop.ask)
        self._catches_up = given.options.until_caught_up
        self._targets: CatchUp | None = None
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, which it does when the driver stops."""
        self._thread.join()

    def publish_last(self) -> None:
        """Publish the positions that the drain completed. Call it after the thread has ended."""
        self.join()
        self._completed.publish_last()

    def _run(self) -> None:
        activity = self._activity
        source = source_kind(self._settings).title
        try:
            next_discovery = 0.0
            while True:
                now = self._clock.monotonic()
                try:
                    if now >= next_discovery:
                        next_discovery = now + self._find_partitions()
                    self._completed.publish()
                    self._check_whether_caught_up()
                    activity.wait_for("", now)
                except (UnreachableError, UnknownTopicError, SourceError) as error:
                    activity.wait_for(f"{source}: {error}", now)
                except StoreError as error:  # no space included
                    activity.wait_for(f"WAL: {error}", now)
                often = next_discovery <= now + RETRY_SECONDS or self._catches_up
                if activity.stopping.wait(SHORT_ROUND_SECONDS if often else ROUND_SECONDS):
                    return
        except BaseException as error:
            self._failed(error)

    def _find_partitions(self) -> float:
        """Discover partitions; then compare commits and see that a snapshot copy knows the partitions. Return the seconds until
        the next discovery."""
        created, missing = self._discover()
        if created:
            self._parts.commits.check()
            if self._parts.copies is not None:
                self._parts.copies.require()
            self._admission.copied = True
        if missing:
            raise UnreachableError(f"topic {', '.join(missing)} does not exist yet; create it, and the driver finds it")
        if self._admission.copied:
            self._activity.partitions_found = True
        self._activity.run_if_ready()
        return self._settings.kafka.discovery_interval if created else RETRY_SECONDS

    def _discover(self) -> tuple[bool, list[str]]:
        """Return whether the stream is created, and which of its topics do not exist.

        Receivers subscribe to the topics of a pattern once the journal has their partitions.
        """
        settings, ask = self._settings, self._parts.loop.ask
        kafka = settings.kafka
        known = ask(ReadKnown())
        there = self._upstream.partitions(kafka.topics, kafka.pattern)
        new = discover(self._upstream, settings, there, known, self._clock.wall_ms())
        if new is not None:
            ask(new)
            names = tuple(f"{s.topic}/{s.partition}" for s in new.starts)
            starts = ", ".join(f"{s.topic}/{s.partition} at {s.start}" for s in new.starts)
            log.info("new partitions: %s", starts, extra=fields(partitions=names))
        self._parts.tracker.subscription = subscribed = subscription(kafka, {tp.topic for tp in there})
        if subscribed == () and not known.created:
            raise UnreachableError(
                f"no topic matches kafka.pattern = {kafka.pattern!r}; the driver finds a topic that is created later"
            )
        begun = {start.topic for start in new.starts} if new is not None else set()
        missing = set(kafka.topics) - known.topics - begun
        return known.created or new is not None, sorted(missing)

    def _check_whether_caught_up(self) -> None:
        if not self._catches_up or not self._activity.partitions_found or self._is_draining():
            return
        ask = self._parts.loop.ask
        if self._targets is None:
            incarnations = {tp: at.incarnation for tp, at in ask(ReadOffsets()).partitions.items()}
            self._targets = CatchUp.of(self._upstream.ends(incarnations), incarnations)
            log.info("catching up to the ends of the source, then stopping: %s", self._targets)
        elif not ask(ReadNotCaughtUp(self._targets)):
            log.info("caught up: all records that the source held at the start are completed")
            self._caught_up()
