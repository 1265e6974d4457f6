"""Kafka's committed offsets compared with the journal, and the publication of completed positions."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from driver.background.discovery import check_commits, foreign_commits
from driver.service.admission import Admission
from driver.tracker.reads import PartitionOffsets, ReadOffsets
from driver.tracker.requests import Ask
from forebay.kafka.client.admin import Committed
from forebay.model.errors import ForebayError, MissingRightError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings
from forebay.sources.kind import Upstream

log = logging.getLogger(__name__)


class CommitCheck:
    """Compares commits of the stream's group with the journal.

    ``foreign``: partition → a sentence about a commit that another program has set.
    """

    def __init__(self, *, settings: Settings, upstream: Upstream, ask: Ask, admission: Admission) -> None:
        self.foreign: dict[TopicPartition, str] = {}
        self._group = settings.group
        self._upstream = upstream
        self._ask = ask
        self._admission = admission

    def check(self) -> None:
        """Compare the group's commits with the journal. The first call also checks that the commits do not prove a lost
        journal.

        Raises UnreachableError. The first call also raises LostJournal and other errors of the source; later calls log these.
        """
        if not self._admission.commits_checked:
            self._check()
            return
        try:
            self._check()
        except UnreachableError:
            raise
        except ForebayError as error:  # a later check only shows what other programs have set
            log.warning("%s", error)

    def _check(self) -> None:
        """Compare the group's commits with the journal's positions. The commits are read first: a receiver commits only a
        position that the journal has, so a commit that is ahead of a position read later proves a loss."""
        committed = self._upstream.committed(self._group, set(self._ask(ReadOffsets()).partitions))
        offsets = self._ask(ReadOffsets())
        positions = {tp: (at.incarnation, at.position) for tp, at in offsets.partitions.items()}
        if not self._admission.commits_checked:
            check_commits(committed, self._group, offsets.timeline, positions)
            self._admission.commits_checked = True
        foreign = foreign_commits(committed, self._group, {tp: position for tp, (_, position) in positions.items()})
        for tp in foreign.keys() - self.foreign.keys():
            log.warning("%s", foreign[tp])
        self.foreign = foreign


class CompletedGroup:
    """Publishes completed positions as commits of a second consumer group. Nothing depends on them."""

    def __init__(self, *, settings: Settings, upstream: Upstream, ask: Ask) -> None:
        self._group = settings.completed_group
        self._upstream = upstream
        self._ask = ask
        self._published: dict[TopicPartition, int] = {}
        self._refusals = ""  # as last logged

    def publish(self) -> None:
        """Commit the positions that changed. A refusal of Kafka is only logged. Raises UnreachableError."""
        offsets = self._ask(ReadOffsets())
        completed: Mapping[TopicPartition, PartitionOffsets] = offsets.partitions
        changed = {
            tp: Committed(at.completed, -1, f"forebay:{offsets.timeline}:{at.incarnation}")
            for tp, at in completed.items()
            if self._published.get(tp) != at.completed
        }
        try:
            errors = self._upstream.publish(self._group, changed)
        except MissingRightError as error:  # nothing depends on this group
            errors = dict.fromkeys(changed, str(error))
        except UnreachableError:
            raise
        except ForebayError as error:  # another consumer uses the group's name
            errors = dict.fromkeys(changed, str(error))
        refusals = "; ".join(sorted(set(errors.values())))
        if refusals and refusals != self._refusals:
            log.warning("group %s: completed positions could not be published: %s", self._group, refusals)
        self._refusals = refusals
        self._published = {tp: at.completed for tp, at in completed.items() if tp not in errors}

    def publish_last(self) -> None:
        """Publish the positions that a drain completed. Errors are logged."""
        try:
            self.publish()
        except ForebayError as error:
            log.warning("group %s: completed positions could not be published: %s", self._group, error)
