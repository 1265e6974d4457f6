"""Managed receivers: the state and the host of each, and when it is started again. Decisions without I/O.

The driver keeps ``count`` receivers of the stream running by means of the hosts' agents. It journals nothing about them:
after a restart it learns their states from the agents' heartbeats. The state changes in
:meth:`ManagedReceivers.take_heartbeat`, when an agent reports what runs on its host, and in
:meth:`ManagedReceivers.run_round`, once per placing interval. The decision loop calls both.

Placing only starts and stops processes. Epochs and tokens decide which receiver owns an offset. So two processes with one id, for
instance after an agent lost its connection, cost time but never a record (INV-4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from driver.decisions.placing import Fleet, Host, place
from forebay import messages as m
from forebay.model.identifiers import managed_id, managed_ordinal
from forebay.process.restarts import RestartPolicy
from forebay.settings.schema import DriverSettings, ReceiverSettings, Settings

_RECEIVER, _DRIVER = ReceiverSettings(), DriverSettings(journal="")

#: maximum intervals of silence that one round counts, if it is late because the driver waited for space
LATE_ROUNDS_MAX = 2.0


class ReceiverState(Enum):
    """The state of a managed receiver, as the driver knows it."""

    SCHEDULED = "scheduled"  # it must run, and its agent has not reported yet that it does
    ACTIVE = "active"  # its process runs
    DRAINING = "draining"  # the driver has ordered it to end
    STOPPED = "stopped"  # it ended by order
    FAILED = "failed"  # it ended by itself, or its host sends no heartbeats


class ReceiverChange(Enum):
    """The causes of a change of a receiver's state. The value is the reason that the log shows."""

    RUNS = "its agent reports that it runs"
    ENDED = "its agent reports that it does not run"
    LOST = "neither its host nor the receiver sends heartbeats"
    HANGS = "its host sends heartbeats, the receiver does not"
    MOVED = "it moves to another host"
    RESTARTED = "an operator restarts it"
    UNWANTED = "it is no longer needed"
    WANTED = "it is needed, and its restart delay is over"


#: (state, change) → new state; a pair without a row changes nothing. A test checks each row
TRANSITIONS: dict[tuple[ReceiverState, ReceiverChange], ReceiverState] = {
    (ReceiverState.SCHEDULED, ReceiverChange.RUNS): ReceiverState.ACTIVE,
    (ReceiverState.SCHEDULED, ReceiverChange.ENDED): ReceiverState.FAILED,
    (ReceiverState.SCHEDULED, ReceiverChange.LOST): ReceiverState.FAILED,
    (ReceiverState.SCHEDULED, ReceiverChange.UNWANTED): ReceiverState.DRAINING,  # its start may have been ordered
    (ReceiverState.ACTIVE, ReceiverChange.ENDED): ReceiverState.FAILED,  # with exit code 0 too: it is wanted
    (ReceiverState.ACTIVE, ReceiverChange.LOST): ReceiverState.FAILED,
    (ReceiverState.ACTIVE, ReceiverChange.HANGS): ReceiverState.DRAINING,  # it is killed, and started elsewhere
    (ReceiverState.ACTIVE, ReceiverChange.MOVED): ReceiverState.DRAINING,
    (ReceiverState.ACTIVE, ReceiverChange.RESTARTED): ReceiverState.DRAINING,
    (ReceiverState.ACTIVE, ReceiverChange.UNWANTED): ReceiverState.DRAINING,
    (ReceiverState.DRAINING, ReceiverChange.ENDED): ReceiverState.STOPPED,
    (ReceiverState.DRAINING, ReceiverChange.LOST): ReceiverState.STOPPED,
    (ReceiverState.STOPPED, ReceiverChange.WANTED): ReceiverState.SCHEDULED,
    (ReceiverState.STOPPED, ReceiverChange.RUNS): ReceiverState.DRAINING,  # an older driver started it
    (ReceiverState.FAILED, ReceiverChange.RUNS): ReceiverState.ACTIVE,  # its host is back, with the process
    (ReceiverState.FAILED, ReceiverChange.WANTED): ReceiverState.SCHEDULED,
    (ReceiverState.FAILED, ReceiverChange.UNWANTED): ReceiverState.STOPPED,
}


@dataclass(slots=True)
class Silence:
    """How long a receiver or host has sent no heartbeat, counted in rounds during which the driver could receive one."""

    seconds: float = 0.0
    heartbeat_at: float | None = None

    def after(self, round_seconds: float, heartbeat_at: float | None) -> float:
        """Count one more round and return the seconds of silence. ``heartbeat_at``: time of the last heartbeat; None: never."""
        self.seconds = self.seconds + round_seconds if heartbeat_at == self.heartbeat_at else 0.0
        self.heartbeat_at = heartbeat_at
        return self.seconds


@dataclass(slots=True)
class _Receiver:
    number: int
    receiver_id: str
    state: ReceiverState = ReceiverState.SCHEDULED
    host: str = ""  # where it runs, or is to run
    moves_to: str = ""
    run: tuple[int, int] | None = None  # driver epoch and version of its start; None: not ordered
    presumed: bool = False  # the journal says that it ran there, and its agent has sent no heartbeat yet
    kill: bool = False
    silence: Silence = field(default_factory=Silence)
    began_at: float = 0.0
    due_at: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)  # host → in a row
    avoided: dict[str, float] = field(default_factory=dict)  # host → until
    pid: int = 0
    restarts: int = 0
    exit_code: int | None = None
    detail: str = ""
    homeless: bool = False

    @property
    def has_process(self) -> bool:
        return self.state in (ReceiverState.ACTIVE, ReceiverState.DRAINING) or (
            self.state is ReceiverState.SCHEDULED and self.run is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedRules:
    """How managed receivers are placed and restarted. The defaults are those of the settings.

    ``preferred``, ``hosts_wait_seconds``, ``moves_max``, ``host_failures_max``, ``avoid_seconds``: as
    ``receiver.preferred_hosts``, ``hosts_wait``, ``moves_max``, ``host_failures_max`` and ``avoid_host``.
    ``timeout_seconds``: silence after which a receiver or host counts as lost. ``start_timeout_seconds``, if longer, for a
    receiver that has sent no heartbeat yet: it must start Python, open its store and wait for the driver, on a host that may be
    busy. ``round_seconds``: time between two rounds.
    """

    preferred: Sequence[str] = ()
    hosts_wait_seconds: float = float(_RECEIVER.hosts_wait)
    moves_max: int = _RECEIVER.moves_max
    timeout_seconds: float = float(_DRIVER.receiver_timeout)
    round_seconds: float = float(_DRIVER.placing_interval)
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    start_timeout_seconds: float = float(_RECEIVER.start_timeout)
    host_failures_max: int = _RECEIVER.host_failures_max
    avoid_seconds: float = float(_RECEIVER.avoid_host)

    @classmethod
    def of(cls, settings: Settings) -> ManagedRules:
        receiver, driver = settings.receiver, settings.driver
        return cls(
            preferred=receiver.preferred_hosts,
            hosts_wait_seconds=receiver.hosts_wait,
            moves_max=receiver.moves_max,
            timeout_seconds=driver.receiver_timeout,
            round_seconds=driver.placing_interval,
            start_timeout_seconds=receiver.start_timeout,
            host_failures_max=receiver.host_failures_max,
            avoid_seconds=receiver.avoid_host,
        )

    @property
    def start_patience_seconds(self) -> float:
        return max(self.timeout_seconds, self.start_timeout_seconds)


class ManagedReceivers:
    """The managed receivers of a stream. One class, because each decision reads the states and places of all receivers.

    ``count``: number of receivers to keep running; 0 if receivers are static: then those that agents still run are drained.
    ``known``: receiver number → host, of the receivers that ran according to the journal. The driver changes nothing about them
    until their hosts' agents have had time to report.
    """

    def __init__(
        self,
        stream: str,
        *,
        driver_epoch: int,
        count: int,
        known: Mapping[int, str],
        rules: ManagedRules | None = None,
    ) -> None:
        self._stream = stream
        self._driver_epoch = driver_epoch
        self._count = count
        self._rules = rules or ManagedRules()
        self._versions = 0
        self._looked_at: float | None = None
        self._share_at = 0.0  # until then, the driver waits for more hosts
        self._hosts: dict[str, m.AgentHeartbeatRequest] = {}
        self._host_silence: dict[str, Silence] = {}
        self._notes: list[str] = []
        self._receivers: dict[int, _Receiver] = {}
        for number in range(count):
            receiver = self._add(number)
            if host := known.get(number):
                receiver.state, receiver.host, receiver.presumed = ReceiverState.ACTIVE, host, True

    def _add(self, number: int, state: ReceiverState = ReceiverState.SCHEDULED) -> _Receiver:
        made = self._receivers[number] = _Receiver(number, managed_id(self._stream, number), state)
        return made

    def want(self, count: int, now: float) -> None:
        """Set the number of receivers to keep running. Receivers with higher numbers drain and stay stopped."""
        self._count = count
        for number in range(count):
            if number not in self._receivers:
                self._add(number)
        self._schedule_and_drain(now)

    def restart(self, receiver_id: str, now: float) -> bool:
        """Drain a receiver, which then starts again on its host; start one that waits for its restart delay immediately.

        Return False if ``receiver_id`` is not one of the receivers to keep running. May be repeated.
        """
        receiver = next((r for r in self._receivers.values() if r.receiver_id == receiver_id), None)
        if receiver is None or receiver.number >= self._count:
            return False
        receiver.due_at = min(receiver.due_at, now)
        self._change(receiver, ReceiverChange.RESTARTED, now)
        return True

    def notes(self) -> list[str]:
        """Return what changed since the last call, one sentence each, for the log."""
        notes, self._notes = self._notes, []
        return notes

    # ---- heartbeats --------------------------------------------------------------------------------------------------

    def _change(self, receiver: _Receiver, what: ReceiverChange, now: float, reason: str = "") -> bool:
        """Change the receiver's state by the table. Return whether the table has a row for it."""
        then = TRANSITIONS.get((receiver.state, what))
        if then is None:
            return False
        if then is not receiver.state:
            where = f" on {receiver.host}" if receiver.host else ""
            self._notes.append(
                f"{receiver.receiver_id}{where}: {receiver.state.value} → {then.value}: {what.value}"
                + (f" ({reason})" if reason else "")
            )
        receiver.state = then
        return True

    def take_heartbeat(self, beat: m.AgentHeartbeatRequest, now: float) -> tuple[m.Command, ...]:
        """Process an agent's heartbeat. Return the receivers that the agent must start, stop or kill."""
        self._hosts[beat.host] = beat
        self._host_silence.setdefault(beat.host, Silence())
        said = {p.receiver_id: p for p in beat.receivers}
        commands: list[m.Command] = []
        for process in beat.receivers:
            number = managed_ordinal(self._stream, process.receiver_id)
            if number is None or not process.running:
                continue
            receiver = self._receivers.get(number) or self._add(number, ReceiverState.STOPPED)
            if receiver.host != beat.host and not self._adopt(receiver, beat.host):
                commands.append(self._command("kill-receiver", receiver, self._versions))
        for receiver in self._receivers.values():
            if receiver.host == beat.host:
                self._compare(receiver, said.get(receiver.receiver_id), now)
                command = self._order(receiver, beat, now)
                if command is not None:
                    commands.append(command)
        return tuple(commands)

    def forget(self, host: str) -> None:
        """Forget a host that has sent no heartbeat for long."""
        self._hosts.pop(host, None)
        self._host_silence.pop(host, None)

    def _adopt(self, receiver: _Receiver, host: str) -> bool:
        """Record that the process on ``host`` is the receiver's process, unless the receiver already has one on another host.
        Return whether it was recorded."""
        if (receiver.has_process and not receiver.presumed) or host in receiver.avoided:
            return False
        receiver.host, receiver.run, receiver.presumed = host, None, False
        return True

    def _compare(self, receiver: _Receiver, process: m.ReceiverProcess | None, now: float) -> None:
        """Update the receiver's state from its agent's report about the process."""
        if process is not None and process.running:
            receiver.run = (process.driver_epoch, process.version)
            receiver.pid, receiver.presumed = process.pid, False
            if self._change(receiver, ReceiverChange.RUNS, now):
                receiver.began_at, receiver.silence, receiver.detail = now, Silence(), ""
            return
        obeyed = process is not None and receiver.run == (process.driver_epoch, process.version)
        if receiver.state in (ReceiverState.ACTIVE, ReceiverState.DRAINING) or (
            receiver.state is ReceiverState.SCHEDULED and obeyed
        ):
            self._ended(receiver, process, now)

    def _ended(self, receiver: _Receiver, process: m.ReceiverProcess | None, now: float) -> None:
        ordered = receiver.state is ReceiverState.DRAINING
        if process is not None and receiver.run == (process.driver_epoch, process.version):
            receiver.exit_code = process.exit_code
            receiver.detail = process.last_line
        else:
            receiver.exit_code, receiver.detail = None, "its agent no longer knows it"
        code = "" if receiver.exit_code is None else f"exit code {receiver.exit_code}"
        self._change(receiver, ReceiverChange.ENDED, now, "; ".join(filter(None, [code, receiver.detail])))
        # a presumed receiver ran under another driver: whether it failed is unknown
        if (not ordered or receiver.kill) and not receiver.presumed:
            self._count_failure(receiver, now)
        self._clear(receiver)

    def _clear(self, receiver: _Receiver) -> None:
        """Record that the receiver has no process. It starts again on its host or on the host to which it moves, or it gets a
        new host."""
        receiver.run, receiver.pid, receiver.kill, receiver.presumed = None, 0, False, False
        receiver.silence = Silence()
        if receiver.moves_to:
            receiver.host, receiver.moves_to = receiver.moves_to, ""
        if receiver.host in receiver.avoided:
            receiver.host = ""

    def _count_failure(self, receiver: _Receiver, now: float) -> None:
        if now - receiver.began_at >= self._rules.policy.stable_seconds:
            receiver.failures.clear()
        failures = receiver.failures[receiver.host] = receiver.failures.get(receiver.host, 0) + 1
        # the delay grows with the consecutive failures on all hosts
        receiver.due_at = now + self._rules.policy.delay_seconds(sum(receiver.failures.values()))
        receiver.restarts += 1
        if failures >= self._rules.host_failures_max:
            receiver.avoided[receiver.host] = now + self._rules.avoid_seconds

    # ---- orders and rounds -----------------------------------------------------------------------------------------

    def _command(self, kind: str, receiver: _Receiver, version: int) -> m.Command:
        return m.Command(version=version, driver_epoch=self._driver_epoch, kind=kind, receiver_id=receiver.receiver_id)

    def _order(self, receiver: _Receiver, beat: m.AgentHeartbeatRequest, now: float) -> m.Command | None:
        """Return the command for the agent: start, stop or kill the receiver. Each heartbeat's answer repeats it until the
        agent reports that it is done."""
        if receiver.state is ReceiverState.DRAINING:
            kind = "kill-receiver" if receiver.kill else "stop-receiver"
            return self._command(kind, receiver, self._versions)
        if receiver.state is not ReceiverState.SCHEDULED or not beat.capacity:
            return None
        if receiver.run is None:
            self._versions += 1
            receiver.run = (self._driver_epoch, self._versions)
            receiver.began_at = now
        return self._command("start-receiver", receiver, receiver.run[1])

    def run_round(
        self, now: float, agent_heartbeat_at: Mapping[str, float], receiver_heartbeat_at: Mapping[str, float]
    ) -> None:
        """Carry out one placing round: update each receiver's state, then choose hosts. ``agent_heartbeat_at``: host → monotonic
        time of its last heartbeat; ``receiver_heartbeat_at``: the same by receiver id."""
        if self._looked_at is None:
            self._looked_at, self._share_at = now, now + self._rules.hosts_wait_seconds
        passed = min(now - self._looked_at, LATE_ROUNDS_MAX * self._rules.round_seconds)
        self._looked_at = now
        lost = self._lost_hosts(passed, agent_heartbeat_at)
        for receiver in self._receivers.values():
            self._listen(receiver, passed, lost, agent_heartbeat_at, receiver_heartbeat_at, now)
        self._schedule_and_drain(now)
        self._place(now)

    def _lost_hosts(self, passed: float, heartbeat_at: Mapping[str, float]) -> set[str]:
        places = {r.host for r in self._receivers.values() if r.host}
        for host in places - self._host_silence.keys():
            self._host_silence[host] = Silence()
        lost = set()
        for host, silence in list(self._host_silence.items()):
            if silence.after(passed, heartbeat_at.get(host)) <= self._rules.timeout_seconds:
                continue
            lost.add(host)
            if self._hosts.pop(host, None) is not None:
                self._notes.append(f"the agent of {host} has sent no heartbeat for {self._rules.timeout_seconds:g} s")
            if host not in places:
                del self._host_silence[host]
        return lost

    def _listen(
        self,
        receiver: _Receiver,
        passed: float,
        lost: Collection[str],
        agent_heartbeat_at: Mapping[str, float],
        receiver_heartbeat_at: Mapping[str, float],
        now: float,
    ) -> None:
        if not receiver.host:
            return
        heartbeat_at = receiver_heartbeat_at.get(receiver.receiver_id)
        silent_seconds = receiver.silence.after(passed, heartbeat_at)
        known = heartbeat_at is not None and heartbeat_at >= receiver.began_at
        patience_seconds = self._rules.timeout_seconds if known else self._rules.start_patience_seconds
        if receiver.host in lost and (silent_seconds > self._rules.timeout_seconds or not receiver.has_process):
            self._declare_lost(receiver, now, f"host {receiver.host} sends no heartbeats")
        elif receiver.kill and silent_seconds > patience_seconds + self._rules.timeout_seconds:
            # for instance because it waits in the kernel for a failed disk: it ends after the wait, and is fenced
            self._declare_lost(receiver, now, f"it could not be killed on {receiver.host}")
        elif (
            silent_seconds > patience_seconds
            and receiver.host in self._hosts
            and receiver.state in (ReceiverState.ACTIVE, ReceiverState.DRAINING)
            and not receiver.kill
        ):
            self._change(receiver, ReceiverChange.HANGS, now, f"silent for {silent_seconds:.0f} s")
            receiver.kill = True
            receiver.avoided[receiver.host] = now + self._rules.avoid_seconds
            receiver.detail = f"it sent no heartbeat for {silent_seconds:.0f} s"

    def _declare_lost(self, receiver: _Receiver, now: float, reason: str) -> None:
        """Treat the process as ended, although no agent will report its end. If it still runs, it is fenced when another one
        registers."""
        receiver.restarts += receiver.has_process
        self._change(receiver, ReceiverChange.LOST, now, reason)
        receiver.detail, receiver.host = reason, ""
        self._clear(receiver)

    def _schedule_and_drain(self, now: float) -> None:
        """Schedule the wanted receivers whose restart delay is over; drain the others."""
        for receiver in self._receivers.values():
            if receiver.number >= self._count:
                self._change(receiver, ReceiverChange.UNWANTED, now)
                receiver.moves_to = ""
                if receiver.state is ReceiverState.DRAINING and not receiver.host:
                    self._change(receiver, ReceiverChange.ENDED, now)
            elif now >= receiver.due_at:
                self._change(receiver, ReceiverChange.WANTED, now)

    def _place(self, now: float) -> None:
        hosts = tuple(Host(name, beat.capacity, frozenset(beat.labels)) for name, beat in sorted(self._hosts.items()))
        able = {host.name for host in hosts if host.capacity}
        share = now >= self._share_at or len(able) >= self._count
        wanted = [r for r in self._receivers.values() if r.number < self._count]
        places: dict[int, str] = {}
        for receiver in wanted:
            receiver.avoided = {host: until for host, until in receiver.avoided.items() if until > now}
            if (
                receiver.host in self._hosts
                and receiver.host not in able
                and receiver.state in (ReceiverState.SCHEDULED, ReceiverState.FAILED, ReceiverState.STOPPED)
            ):
                receiver.host, receiver.run = "", None  # an agent that is about to end starts no receivers
            if receiver.state is ReceiverState.SCHEDULED or receiver.host:
                places[receiver.number] = receiver.moves_to or receiver.host
        moving = sum(bool(receiver.moves_to) for receiver in wanted)
        placement = place(
            Fleet(
                hosts,
                places,
                [r.number for r in wanted if r.state is ReceiverState.ACTIVE and not r.presumed],
                {r.number: frozenset(r.avoided) for r in wanted if r.avoided},
            ),
            self._rules.preferred,
            max(0, self._rules.moves_max - moving),
            share,
        )
        at_host = Counter({**places, **placement.starts, **placement.moves}.values())
        for receiver in wanted:
            beat = self._hosts.get(receiver.host)
            waits = (
                beat is not None
                and receiver.state is ReceiverState.SCHEDULED
                and at_host[receiver.host] > beat.capacity
            )
            receiver.homeless = (
                receiver.number in placement.homeless or waits
            )  # an agent starts no more than its capacity
        for number, name in placement.starts.items():
            self._receivers[number].host = name
            self._receivers[number].run = None
        for number, name in placement.moves.items():
            receiver = self._receivers[number]
            self._change(receiver, ReceiverChange.MOVED, now, f"to {name}")
            receiver.moves_to, receiver.detail = name, ""

    # ---- status ----------------------------------------------------------------------------------------------------

    def status(self, now: float) -> Iterable[m.ManagedReceiver]:
        """Return each receiver as status shows it, by number."""
        for _, receiver in sorted(self._receivers.items()):
            yield m.ManagedReceiver(
                receiver_id=receiver.receiver_id,
                state=receiver.state.value,
                host=receiver.host,
                pid=receiver.pid,
                restarts=receiver.restarts,
                exit_code=receiver.exit_code,
                detail=self._detail(receiver, now),
                moves_to=receiver.moves_to,
                fault=(
                    f"receiver {receiver.receiver_id} has no host: no agent that sends heartbeats has room; start an agent, "
                    "or raise agent.capacity"
                    if receiver.homeless
                    else ""
                ),
            )

    def _detail(self, receiver: _Receiver, now: float) -> str:
        parts = [receiver.detail]
        if receiver.presumed:
            parts.append("no heartbeat since this driver leads")
        elif receiver.state in (ReceiverState.FAILED, ReceiverState.STOPPED) and receiver.number < self._count:
            parts.append(f"started again in {max(0.0, receiver.due_at - now):.1f} s")
        elif receiver.state is ReceiverState.SCHEDULED and not receiver.host and not receiver.homeless:
            parts.append(f"waits up to {max(0.0, self._share_at - now):.0f} s for a host without another receiver")
        if receiver.avoided:
            parts.append(f"failed repeatedly on {', '.join(sorted(receiver.avoided))}")
        return "; ".join(filter(None, parts))
