"""The health of a stream: each problem with its kind, its cause, and the command to run next.

A healthy stream has a live receiver for every partition. Receivers and agents that sent a heartbeat to this driver continue to
send heartbeats, unless they drained (SIGTERM, ``forebay stop``) or an operator forgot them (``forebay forget``). A receiver
that holds claims in the journal starts again. ``receiver.count`` managed receivers run.

A missing process is *pending* at first, since a start, a rebalance and a rolling restart take time. It is a problem after
``driver.receiver_timeout``; if the driver starts the process itself, after at least ``receiver.start_timeout``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from driver.background.reach import Outage
from driver.decision_loop.loop import RESERVE_REACHED, WAITING_FOR_SPACE
from driver.decisions.problems import RESUME_COMMAND
from driver.journal.receiver_limits import shortage
from driver.journal.state_parts import Partition
from driver.tracker import Tracker
from forebay.messages import Problem, StatusAnswer
from forebay.model.errors import RefusedError
from forebay.model.identifiers import is_reserved, timeline_of
from forebay.model.units import utc_text
from forebay.model.values import TopicPartition
from forebay.process.logs import fields
from forebay.process.reminder import Reminder

log = logging.getLogger(__name__)

#: maximum number of names in a sentence; the rest is counted
NAMES_SHOWN = 5
#: time after which a waiting receiver or driver is a problem
WAITING_SECONDS = 5.0
#: number of restarts of a managed receiver after which it is a problem immediately if it does not run
RESTARTS_MAX = 2

#: what does not answer → the next step
COMMANDS = {
    "kafka": "start the broker, or correct [kafka] and start the driver again; `forebay validate` checks it too",
    "source": "see what the source waits for; `forebay validate` checks it too",
    "wal": "make wal.url readable and writable again; then `forebay wal verify`",
    "journal": "make driver.journal readable and writable again; then `forebay journal inspect`",
}
_FEWER_IDS = (
    "start receivers again under the ids that they had, or lower wal.retention so that blocks of ended ones are deleted "
    "sooner"
)
_FREE_SPACE = "free space in the store of driver.journal; then the driver continues by itself"


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds until a missing process is a problem.

    ``timeout``: time without a heartbeat after which a process counts as missing. ``start``: maximum time that a partition has no
    receiver while one starts.
    """

    timeout: float
    start: float


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The health of a stream. ``problems``: conditions that need an operator. ``pending``: conditions that become problems if
    they last."""

    problems: tuple[Problem, ...] = ()
    pending: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Findings:
    """Collects problems. A condition is pending until its grace is over."""

    problems: list[Problem] = field(default_factory=list)
    pending: list[Problem] = field(default_factory=list)

    def add(self, kind: str, cause: str, command: str, seconds: float = 0.0, grace: float = 0.0) -> None:
        late = seconds >= grace
        message = cause if late else f"{cause}; a problem after {grace:g} s"
        problem = Problem(kind=kind, cause=message, command=command, seconds=round(seconds, 1))
        (self.problems if late else self.pending).append(problem)

    @property
    def verdict(self) -> HealthVerdict:
        return HealthVerdict(tuple(self.problems), tuple(self.pending))


class Health:
    """Finds the problems of a stream, and remembers since when each process is missing. Called only in the decision loop.

    ``managed``: whether agents run the receivers. ``since``: when the driver began to lead. ``outages``: returns the services
    that do not answer. ``topics``: the topics that the settings name; None: receivers take in the topics that the driver names,
    or all.
    """

    def __init__(
        self,
        tracker: Tracker,
        grace: Grace,
        *,
        managed: bool,
        since: float,
        outages: Callable[[], Sequence[Outage]] = tuple,
        topics: Collection[str] | None = None,
    ) -> None:
        self._topics = topics
        self._tracker = tracker
        self._grace = grace
        self._managed = managed
        self._since = since
        self._outages = outages
        self._live_at = {partition.tp: since for partition in tracker.state.partitions.values()}
        self._ran_at: dict[str, float] = {}  # managed receivers
        self._waits_since: dict[str, float] = {}  # receivers, "" for the driver, and "deletion HOST" for agents
        self._forgotten: dict[str, float] = {}  # receivers and hosts → when an operator said so

    def look(self, now: float, state: str = "running", detail: str = "") -> HealthVerdict:
        """Return the problems at ``now``. ``state``, ``detail``: the driver's. Call it often: it sees only the present state."""
        findings = _Findings()
        for outage in self._outages():
            where = {"kafka": "Kafka is", "source": "the source is", "wal": "the WAL's store is"}
            cause = f"{where.get(outage.name, f'the {outage.name} store is')} out of reach: {outage.cause}"
            findings.add(outage.name, cause, COMMANDS[outage.name], outage.seconds)
        self._driver(findings, now, state, detail)
        self._pause(findings)
        if message := shortage(self._tracker.state):
            findings.add("receiver-ids", message, _FEWER_IDS)
        if state != "stopping":  # a drain ends receivers on purpose
            self._partitions(findings, now)
            self._receivers(findings, now)
            self._managed_receivers(findings, now)
            self._agents(findings, now)
        return findings.verdict

    def forget(self, name: str, now: float) -> None:
        """Expect no more heartbeats of a receiver or host. Raises RefusedError if it is unknown, or still sends heartbeats."""
        known = {host: latest.at for host, latest in self._tracker.agent_heartbeats.items()}
        for receiver in self._tracker.state.receivers.values():
            latest = self._tracker.receiver_heartbeats.get(receiver.receiver_id)
            known[receiver.receiver_id] = latest.at if latest is not None else self._since
        if name not in known:
            raise RefusedError(
                f"no receiver and no agent's host is named {name!r}: `forebay status` shows them", "not-found"
            )
        silent, timeout = now - known[name], self._grace.timeout
        if silent <= timeout:
            has_sent = name in self._tracker.agent_heartbeats or name in self._tracker.receiver_heartbeats
            message = (
                f"{name} sent a heartbeat {silent:.0f} s ago: stop it first (SIGTERM)"
                if has_sent
                else f"{name} may still send a heartbeat: the driver has led for {silent:.0f} s; try again after {timeout:g} s"
            )
            raise RefusedError(message, "conflict")
        self._forgotten[name] = now

    def _is_forgotten(self, name: str, heartbeat_at: float) -> bool:
        if heartbeat_at > self._forgotten.get(name, heartbeat_at):
            del self._forgotten[name]
        return name in self._forgotten

    def _driver(self, findings: _Findings, now: float, state: str, detail: str) -> None:
        origin, _, cause = detail.partition(": ")
        kind = origin.lower()
        waits = cause and kind in ("kafka", "source", "wal") and state != "stopping"
        seconds = self._waiting("", bool(waits), now)
        if detail == RESERVE_REACHED:
            findings.add("journal", detail, _FREE_SPACE)
        known = {problem.kind for problem in findings.problems}
        if waits and kind not in known:
            findings.add(kind, f"the driver waits for {origin}: {cause}", COMMANDS[kind], seconds, WAITING_SECONDS)

    def _pause(self, findings: _Findings) -> None:
        state = self._tracker.state
        if (pause := state.pause) is not None:
            since = f"since {utc_text(pause.time_ms)} by {pause.cause}"
            cause = f"no batch begins: paused {since}; {len(state.waiting)} blocks wait"
            findings.pending.append(Problem(kind="paused", cause=cause, command=RESUME_COMMAND))

    def _waiting(self, name: str, waits: bool, now: float) -> float:
        if not waits:
            self._waits_since.pop(name, None)
            return 0.0
        return now - self._waits_since.setdefault(name, now)

    def _partitions(self, findings: _Findings, now: float) -> None:
        missing: list[tuple[TopicPartition, float]] = []
        for partition in self._tracker.state.partitions.values():
            tp = partition.tp
            if not self._is_followed(tp.topic):
                continue
            heartbeat_at = self._heartbeat_at(partition)
            live_at = self._live_at[tp] = max(self._live_at.get(tp, heartbeat_at or now), heartbeat_at)
            if partition.fault is None and (not heartbeat_at or now - heartbeat_at > self._grace.timeout):
                missing.append((tp, now - max(live_at, self._since)))
        if not missing:
            return
        for late in (True, False):
            these = [one for one in missing if (one[1] >= self._grace.start) is late]
            if these:
                seconds = max(seconds for _, seconds in these)
                names = _names(str(tp) for tp, _ in these)
                message = (
                    f"no live receiver: {len(these)} of {len(self._tracker.state.partitions)} partitions ({names})"
                )
                findings.add("partitions-without-receiver", message, self._start_command, seconds, self._grace.start)

    def _is_followed(self, topic: str) -> bool:
        """Return whether receivers still take the topic in. They do not if it was removed from ``kafka.topics``, or if a
        pattern matched it and it is deleted."""
        topics = self._topics if self._topics is not None else self._tracker.subscription
        return topics is None or topic in topics

    def _heartbeat_at(self, partition: Partition) -> float:
        latest = self._tracker.receiver_heartbeats.get(partition.owner) if partition.owner else None
        return latest.at if latest is not None else 0.0

    @property
    def _start_command(self) -> str:
        if self._managed:
            return "start `forebay agent` on a host with room (agent.capacity), or `forebay up`"
        return "start `forebay receiver --id ID` (`systemctl start forebay-receiver@ID`), or `forebay up`"

    def _receivers(self, findings: _Findings, now: float) -> None:
        tracker, timeout = self._tracker, self._grace.timeout
        owners = {partition.owner for partition in tracker.state.partitions.values()}
        managed = {receiver.receiver_id for receiver in tracker.managed.status(now)}
        for receiver in tracker.state.receivers.values():
            name = receiver.receiver_id
            if is_reserved(name) or not receiver.instance_id:
                continue
            latest = tracker.receiver_heartbeats.get(name)
            if latest is None and name not in owners:
                continue  # it drained before this driver began, or others have its partitions: it is not expected
            heartbeat_at = latest.at if latest is not None else self._since
            silent = now - heartbeat_at
            drained = latest is not None and latest.heartbeat.state == "draining"
            gone = silent > timeout and not drained and name not in managed  # those are started again elsewhere
            if gone and not self._is_forgotten(name, heartbeat_at):
                findings.add(
                    "receiver-gone",
                    f"receiver {name} on host {receiver.host} has sent no heartbeat for {silent:.0f} s",
                    f"start it again there; if it will not run again, run `forebay forget {name}`",
                    silent,
                )
            beat = latest.heartbeat if latest is not None and silent <= timeout else None
            waits = beat is not None and beat.state == "waiting" and bool(beat.detail)
            seconds = self._waiting(name, waits, now)
            if beat is not None and waits:
                cause = f"receiver {name} on host {receiver.host} takes in no records: {beat.detail}"
                command = "resolve the cause that it reports; then it continues by itself"
                findings.add("receiver-waiting", cause, command, seconds, WAITING_SECONDS)

    def _managed_receivers(self, findings: _Findings, now: float) -> None:
        for receiver in self._tracker.managed.status(now):
            name = receiver.receiver_id
            if receiver.state not in ("scheduled", "failed"):
                self._ran_at[name] = now
                continue
            seconds = now - self._ran_at.setdefault(name, now)
            if receiver.fault:
                continue  # said as such
            again = receiver.restarts >= RESTARTS_MAX
            message = f"managed receiver {name} does not run (restarts {receiver.restarts}): {receiver.detail or receiver.state}"
            command = "resolve the cause that it reports; the log of its host's agent has details"
            findings.add("receiver-not-running", message, command, seconds, 0.0 if again else self._grace.start)

    def _agents(self, findings: _Findings, now: float) -> None:
        for host, latest in self._tracker.agent_heartbeats.items():
            silent = now - latest.at
            gone = silent > self._grace.timeout and latest.heartbeat.state != "draining"
            if gone and not self._is_forgotten(host, latest.at):
                findings.add(
                    "agent-gone",
                    f"the agent of host {host} has sent no heartbeat for {silent:.0f} s",
                    f"start `forebay agent` there; if it will not run again, run `forebay forget {host}`",
                    silent,
                )
            stuck = latest.heartbeat.undeleted_blocks if silent <= self._grace.timeout else 0
            seconds = self._waiting(f"deletion {host}", stuck > 0, now)
            if stuck:
                findings.add(
                    "blocks-not-deleted",
                    f"the agent of host {host} cannot delete {stuck} blocks there: {latest.heartbeat.undeleted_cause}",
                    "check the disk there, and that the agent's user may delete the file; then it continues by itself",
                    seconds,
                    WAITING_SECONDS,
                )


class HealthLog:
    """Writes problems to the driver's log: each kind when it begins, then after growing delays while it lasts, and when it is
    over; and the reason why a start waits."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._kinds: set[str] = set()
        self._reminders: dict[str, Reminder] = {}
        self._reported: set[str] = set()

    def note(self, verdict: HealthVerdict, now: float) -> None:
        """Log what has changed. ``now``: monotonic seconds; call it more often than once a minute."""
        for problem in verdict.pending:
            if problem.seconds >= WAITING_SECONDS and problem.kind not in self._reported | self._kinds:
                self._reported.add(problem.kind)
                log.info(
                    "stream %s waits: %s. Next step: %s",
                    self._stream,
                    problem.cause,
                    problem.command,
                    extra=fields(problem=problem.kind, seconds=problem.seconds),
                )
        for problem in verdict.problems:
            if self._reminders.setdefault(problem.kind, Reminder()).is_due(now):
                log.warning(
                    "stream %s, problem %s: %s. Next step: %s",
                    self._stream,
                    problem.kind,
                    problem.cause,
                    problem.command,
                    extra=fields(problem=problem.kind, seconds=problem.seconds or None),
                )
        kinds = {problem.kind for problem in verdict.problems}
        for kind in sorted(self._kinds - kinds):
            log.info("stream %s, problem %s is over", self._stream, kind, extra=fields(problem=kind))
            del self._reminders[kind]
        self._kinds = kinds
        self._reported &= {problem.kind for problem in verdict.pending}


def journal_is_away(stream: str, release: str, epoch: int, outage: str) -> StatusAnswer:
    """Return the health answer of a driver that waits for the journal's store: it shows nothing of the state. ``outage``: why
    the store does not answer; "" if it has no space."""
    problem = Problem(
        kind="journal",
        cause=f"the journal's store is out of reach: {outage}" if outage else WAITING_FOR_SPACE,
        command=COMMANDS["journal"] if outage else _FREE_SPACE,
    )
    return StatusAnswer(
        stream=stream,
        release=release,
        timeline=timeline_of(epoch),
        driver_epoch=epoch,
        state="waiting",
        detail=problem.cause,
        topic_ids_known=False,
        waiting_blocks=0,
        waiting_records=0,
        batches_completed=0,
        records_completed=0,
        problems=(problem,),
    )


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = len(listed) - NAMES_SHOWN
    return ", ".join(listed[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
