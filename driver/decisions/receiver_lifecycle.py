"""Managed receivers: what state each is in, where it runs, when it is started again. Decisions without I/O.

The driver keeps ``count`` receivers of the stream by the hosts' agents. What it knows of them is soft: after a restart it is
told anew by the agents' heartbeats, and nothing is journalled. Two things bring it on: :meth:`ManagedReceivers.heard`, when an
agent says what runs on its host, and :meth:`ManagedReceivers.look`, once per placing interval. Both are called from the
deciding thread. Placing starts and stops processes, nothing else: who owns an offset is decided by epochs and tokens, so two
processes under one id, as after an agent was cut off, cost time and never a record (INV-4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from driver.decisions.placing import Fleet, Host, place
from forebay import messages as m
from forebay.model.values import managed_id, managed_ordinal
from forebay.process.restarts import RestartPolicy

#: a round that comes late (the driver waited for space) counts as no more than so many intervals of silence
LATE_ROUNDS_MAX = 2.0


class State(Enum):
    SCHEDULED = "scheduled"  # wanted, and not known to run yet
    ACTIVE = "active"  # its process runs
    DRAINING = "draining"  # it is told to end
    STOPPED = "stopped"  # it ended as it was told
    FAILED = "failed"  # it ended by itself, or its host is gone


class Happened(Enum):
    RUNS = "its agent says that it runs"
    ENDED = "its agent says that it does not run"
    LOST = "its host is silent, and so is it"
    HANGS = "its host is heard, it is not"
    MOVED = "it is to run on another host"
    UNWANTED = "it is not to run any more"
    WANTED = "it is to run, and its delay is over"


#: each row is a promise; what is not here changes nothing. A test goes over all of it
TRANSITIONS: dict[tuple[State, Happened], State] = {
    (State.SCHEDULED, Happened.RUNS): State.ACTIVE,
    (State.SCHEDULED, Happened.ENDED): State.FAILED,
    (State.SCHEDULED, Happened.LOST): State.FAILED,
    (State.SCHEDULED, Happened.UNWANTED): State.DRAINING,  # its start may have been ordered
    (State.ACTIVE, Happened.ENDED): State.FAILED,  # with exit code 0 too: it is wanted
    (State.ACTIVE, Happened.LOST): State.FAILED,
    (State.ACTIVE, Happened.HANGS): State.DRAINING,  # it is killed, and started elsewhere
    (State.ACTIVE, Happened.MOVED): State.DRAINING,
    (State.ACTIVE, Happened.UNWANTED): State.DRAINING,
    (State.DRAINING, Happened.ENDED): State.STOPPED,
    (State.DRAINING, Happened.LOST): State.STOPPED,
    (State.STOPPED, Happened.WANTED): State.SCHEDULED,
    (State.STOPPED, Happened.RUNS): State.DRAINING,  # somebody else's start: an older driver's
    (State.FAILED, Happened.RUNS): State.ACTIVE,  # its host is back, with it
    (State.FAILED, Happened.WANTED): State.SCHEDULED,
    (State.FAILED, Happened.UNWANTED): State.STOPPED,
}


@dataclass(slots=True)
class Silence:
    """How long somebody has said nothing, by the rounds in which the driver was there to hear it."""

    seconds: float = 0.0
    heard_at: float | None = None

    def after(self, round_seconds: float, heard_at: float | None) -> float:
        """``heard_at``: when it was heard last, None if never."""
        self.seconds = self.seconds + round_seconds if heard_at == self.heard_at else 0.0
        self.heard_at = heard_at
        return self.seconds


@dataclass(slots=True)
class _Receiver:
    number: int
    receiver_id: str
    state: State = State.SCHEDULED
    host: str = ""  # where it runs, or is to run
    moves_to: str = ""
    run: tuple[int, int] | None = None  # driver epoch and version of its start; None: not ordered
    presumed: bool = False  # the journal says that it ran there, its agent has not been heard yet
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
        return self.state in (State.ACTIVE, State.DRAINING) or (self.state is State.SCHEDULED and self.run is not None)


class ManagedReceivers:
    """``count``: receivers to keep; 0 where they are static, and what agents still run is drained. ``known``: number → host, of
    those that ran by the journal: they are left alone until their host has had the time to say how they are. One that has never
    been heard has ``start_timeout_seconds`` where that is more than ``timeout_seconds``: it starts Python, opens its store and
    waits for the driver first, on a host that may be busy. After ``host_failures_max`` failures in a row on one host, another one
    is taken if there is one with room, for ``avoid_seconds``."""

    def __init__(
        self,
        stream: str,
        driver_epoch: int,
        count: int,
        known: Mapping[int, str],
        *,
        preferred: Sequence[str] = (),
        hosts_wait_seconds: float = 30.0,
        moves_max: int = 1,
        timeout_seconds: float = 30.0,
        round_seconds: float = 1.0,
        policy: RestartPolicy | None = None,
        start_timeout_seconds: float = 90.0,
        host_failures_max: int = 3,
        avoid_seconds: float = 600.0,
    ) -> None:
        self._stream = stream
        self._driver_epoch = driver_epoch
        self._count = count
        self._preferred = tuple(preferred)
        self._hosts_wait_seconds = hosts_wait_seconds
        self._moves_max = moves_max
        self._timeout_seconds = timeout_seconds
        self._start_patience_seconds = max(timeout_seconds, start_timeout_seconds)
        self._host_failures_max = host_failures_max
        self._round_seconds = round_seconds
        self._policy = policy or RestartPolicy()
        self._avoid_seconds = avoid_seconds
        self._versions = 0
        self._looked_at: float | None = None
        self._share_at = 0.0  # hosts are waited for until then
        self._hosts: dict[str, m.AgentHeartbeatRequest] = {}
        self._host_silence: dict[str, Silence] = {}
        self._notes: list[str] = []
        self._receivers: dict[int, _Receiver] = {}
        for number in range(count):
            receiver = self._add(number)
            if host := known.get(number):
                receiver.state, receiver.host, receiver.presumed = State.ACTIVE, host, True

    def _add(self, number: int, state: State = State.SCHEDULED) -> _Receiver:
        made = self._receivers[number] = _Receiver(number, managed_id(self._stream, number), state)
        return made

    def want(self, count: int, now: float) -> None:
        """Keeps ``count`` of them from now on; those beyond drain, and stay stopped."""
        self._count = count
        for number in range(count):
            if number not in self._receivers:
                self._add(number)
        self._settle(now)

    def notes(self) -> list[str]:
        """What changed since they were asked for last, a sentence each, for the log."""
        notes, self._notes = self._notes, []
        return notes

    # ---- what happened -----------------------------------------------------------------------------------------------

    def _happen(self, receiver: _Receiver, what: Happened, now: float, words: str = "") -> bool:
        """Whether the table has a row for it."""
        then = TRANSITIONS.get((receiver.state, what))
        if then is None:
            return False
        if then is not receiver.state:
            where = f" on {receiver.host}" if receiver.host else ""
            self._notes.append(
                f"{receiver.receiver_id}{where}: {receiver.state.value} → {then.value}: {what.value}"
                + (f" ({words})" if words else "")
            )
        receiver.state = then
        return True

    def heard(self, beat: m.AgentHeartbeatRequest, now: float) -> tuple[m.Command, ...]:
        """What the agent of ``beat.host`` is to start, stop or kill."""
        self._hosts[beat.host] = beat
        self._host_silence.setdefault(beat.host, Silence())
        said = {p.receiver_id: p for p in beat.receivers}
        commands: list[m.Command] = []
        for process in beat.receivers:
            number = managed_ordinal(self._stream, process.receiver_id)
            if number is None or not process.running:
                continue
            receiver = self._receivers.get(number) or self._add(number, State.STOPPED)
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
        """Of a host that was not heard for long: it makes room for another one."""
        self._hosts.pop(host, None)
        self._host_silence.pop(host, None)

    def _adopt(self, receiver: _Receiver, host: str) -> bool:
        """Takes the process that runs on ``host`` for the receiver's, unless it has one elsewhere."""
        if (receiver.has_process and not receiver.presumed) or host in receiver.avoided:
            return False
        receiver.host, receiver.run, receiver.presumed = host, None, False
        return True

    def _compare(self, receiver: _Receiver, process: m.ReceiverProcess | None, now: float) -> None:
        """The receiver as it is thought to be, with what its agent says."""
        if process is not None and process.running:
            receiver.run = (process.driver_epoch, process.version)
            receiver.pid, receiver.presumed = process.pid, False
            if self._happen(receiver, Happened.RUNS, now):
                receiver.began_at, receiver.silence, receiver.detail = now, Silence(), ""
            return
        obeyed = process is not None and receiver.run == (process.driver_epoch, process.version)
        if receiver.state in (State.ACTIVE, State.DRAINING) or (receiver.state is State.SCHEDULED and obeyed):
            self._ended(receiver, process, now)

    def _ended(self, receiver: _Receiver, process: m.ReceiverProcess | None, now: float) -> None:
        told = receiver.state is State.DRAINING
        if process is not None and receiver.run == (process.driver_epoch, process.version):
            receiver.exit_code = process.exit_code
            receiver.detail = process.last_words
        else:
            receiver.exit_code, receiver.detail = None, "its agent does not know it any more"
        code = "" if receiver.exit_code is None else f"exit code {receiver.exit_code}"
        self._happen(receiver, Happened.ENDED, now, "; ".join(filter(None, [code, receiver.detail])))
        # one that is only presumed ran under another driver: nothing failed as far as anybody knows
        if (not told or receiver.kill) and not receiver.presumed:
            self._count_failure(receiver, now)
        self._clear(receiver)

    def _clear(self, receiver: _Receiver) -> None:
        """It has no process now: it starts where it was, or where it was to move, or is given a place."""
        receiver.run, receiver.pid, receiver.kill, receiver.presumed = None, 0, False, False
        receiver.silence = Silence()
        if receiver.moves_to:
            receiver.host, receiver.moves_to = receiver.moves_to, ""
        if receiver.host in receiver.avoided:
            receiver.host = ""

    def _count_failure(self, receiver: _Receiver, now: float) -> None:
        if now - receiver.began_at >= self._policy.stable_seconds:
            receiver.failures.clear()
        failures = receiver.failures[receiver.host] = receiver.failures.get(receiver.host, 0) + 1
        # the delay grows with all that failed in a row, on whatever hosts
        receiver.due_at = now + self._policy.delay_seconds(sum(receiver.failures.values()))
        receiver.restarts += 1
        if failures >= self._host_failures_max:
            receiver.avoided[receiver.host] = now + self._avoid_seconds

    # ---- what is to be done ------------------------------------------------------------------------------------------

    def _command(self, kind: str, receiver: _Receiver, version: int) -> m.Command:
        return m.Command(version=version, driver_epoch=self._driver_epoch, kind=kind, receiver_id=receiver.receiver_id)

    def _order(self, receiver: _Receiver, beat: m.AgentHeartbeatRequest, now: float) -> m.Command | None:
        """Repeated with every heartbeat until the agent says that it is so."""
        if receiver.state is State.DRAINING:
            kind = "kill-receiver" if receiver.kill else "stop-receiver"
            return self._command(kind, receiver, self._versions)
        if receiver.state is not State.SCHEDULED or not beat.capacity:
            return None
        if receiver.run is None:
            self._versions += 1
            receiver.run = (self._driver_epoch, self._versions)
            receiver.began_at = now
        return self._command("start-receiver", receiver, receiver.run[1])

    def look(self, now: float, agents_heard_at: Mapping[str, float], receivers_heard_at: Mapping[str, float]) -> None:
        """A round. ``agents_heard_at``: host → monotonic time of its last heartbeat; ``receivers_heard_at``: the same by
        receiver id."""
        if self._looked_at is None:
            self._looked_at, self._share_at = now, now + self._hosts_wait_seconds
        passed = min(now - self._looked_at, LATE_ROUNDS_MAX * self._round_seconds)
        self._looked_at = now
        lost = self._lost_hosts(passed, agents_heard_at)
        for receiver in self._receivers.values():
            self._listen(receiver, passed, lost, agents_heard_at, receivers_heard_at, now)
        self._settle(now)
        self._place(now)

    def _lost_hosts(self, passed: float, heard_at: Mapping[str, float]) -> set[str]:
        places = {r.host for r in self._receivers.values() if r.host}
        for host in places - self._host_silence.keys():
            self._host_silence[host] = Silence()
        lost = set()
        for host, silence in list(self._host_silence.items()):
            if silence.after(passed, heard_at.get(host)) <= self._timeout_seconds:
                continue
            lost.add(host)
            if self._hosts.pop(host, None) is not None:
                self._notes.append(f"the agent of {host} has not been heard for {self._timeout_seconds:g} s")
            if host not in places:
                del self._host_silence[host]
        return lost

    def _listen(
        self,
        receiver: _Receiver,
        passed: float,
        lost: Collection[str],
        agents_heard_at: Mapping[str, float],
        receivers_heard_at: Mapping[str, float],
        now: float,
    ) -> None:
        if not receiver.host:
            return
        heard_at = receivers_heard_at.get(receiver.receiver_id)
        silent_seconds = receiver.silence.after(passed, heard_at)
        known = heard_at is not None and heard_at >= receiver.began_at
        patience_seconds = self._timeout_seconds if known else self._start_patience_seconds
        if receiver.host in lost and (silent_seconds > self._timeout_seconds or not receiver.has_process):
            self._give_up(receiver, now, f"host {receiver.host} is not heard any more")
        elif receiver.kill and silent_seconds > patience_seconds + self._timeout_seconds:
            # such as one that waits within the kernel for a disk that is gone: it ends with the wait, and is fenced
            self._give_up(receiver, now, f"it could not be killed on {receiver.host}")
        elif (
            silent_seconds > patience_seconds
            and receiver.host in self._hosts
            and receiver.state in (State.ACTIVE, State.DRAINING)
            and not receiver.kill
        ):
            self._happen(receiver, Happened.HANGS, now, f"silent for {silent_seconds:.0f} s")
            receiver.kill = True
            receiver.avoided[receiver.host] = now + self._avoid_seconds
            receiver.detail = f"it said nothing for {silent_seconds:.0f} s"

    def _give_up(self, receiver: _Receiver, now: float, words: str) -> None:
        """Nobody will tell that its process ended. Should it go on, it is fenced when another one registers."""
        receiver.restarts += receiver.has_process
        self._happen(receiver, Happened.LOST, now, words)
        receiver.detail, receiver.host = words, ""
        self._clear(receiver)

    def _settle(self, now: float) -> None:
        """Those wanted are scheduled when their delay is over, the others drain."""
        for receiver in self._receivers.values():
            if receiver.number >= self._count:
                self._happen(receiver, Happened.UNWANTED, now)
                receiver.moves_to = ""
                if receiver.state is State.DRAINING and not receiver.host:
                    self._happen(receiver, Happened.ENDED, now)
            elif now >= receiver.due_at:
                self._happen(receiver, Happened.WANTED, now)

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
                and receiver.state in (State.SCHEDULED, State.FAILED, State.STOPPED)
            ):
                receiver.host, receiver.run = "", None  # an agent that is about to end starts none any more
            if receiver.state is State.SCHEDULED or receiver.host:
                places[receiver.number] = receiver.moves_to or receiver.host
        moving = sum(bool(receiver.moves_to) for receiver in wanted)
        placement = place(
            Fleet(
                hosts,
                places,
                [r.number for r in wanted if r.state is State.ACTIVE and not r.presumed],
                {r.number: frozenset(r.avoided) for r in wanted if r.avoided},
            ),
            self._preferred,
            max(0, self._moves_max - moving),
            share,
        )
        at_host = Counter({**places, **placement.starts, **placement.moves}.values())
        for receiver in wanted:
            beat = self._hosts.get(receiver.host)
            waits = beat is not None and receiver.state is State.SCHEDULED and at_host[receiver.host] > beat.capacity
            receiver.homeless = receiver.number in placement.homeless or waits  # its agent starts no more than it may
        for number, name in placement.starts.items():
            self._receivers[number].host = name
            self._receivers[number].run = None
        for number, name in placement.moves.items():
            receiver = self._receivers[number]
            self._happen(receiver, Happened.MOVED, now, f"to {name}")
            receiver.moves_to, receiver.detail = name, ""

    # ---- what people see ---------------------------------------------------------------------------------------------

    def status(self, now: float) -> Iterable[m.ManagedReceiver]:
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
                    f"receiver {receiver.receiver_id} has no place: no agent is heard that has room for it; start an agent, "
                    "or raise agent.capacity"
                    if receiver.homeless
                    else ""
                ),
            )

    def _detail(self, receiver: _Receiver, now: float) -> str:
        words = [receiver.detail]
        if receiver.presumed:
            words.append("not heard of since this driver leads")
        elif receiver.state in (State.FAILED, State.STOPPED) and receiver.number < self._count:
            words.append(f"started again in {max(0.0, receiver.due_at - now):.1f} s")
        elif receiver.state is State.SCHEDULED and not receiver.host and not receiver.homeless:
            words.append(f"waits up to {max(0.0, self._share_at - now):.0f} s for hosts of its own")
        if receiver.avoided:
            words.append(f"kept failing on {', '.join(sorted(receiver.avoided))}")
        return "; ".join(filter(None, words))
