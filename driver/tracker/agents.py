"""Agents: the hosts' addresses, the deletion of local copies there, and the managed receivers that they run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import msgspec

from driver.decisions.clean_up import COPIES_AT_ONCE, is_left_over, is_stray, to_give_up
from driver.decisions.receiver_lifecycle import ManagedReceivers
from driver.journal import events as ev
from driver.journal.state_parts import Cleanup
from driver.tracker.decision import Recorder
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from driver.tracker.names import check_names
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError

#: maximum number of hosts whose agents are known, and the silence after which one makes room for another
AGENTS_MAX, AGENT_FORGOTTEN_SECONDS = 1_000, 3600.0
#: maximum items of each list in an agent's heartbeat (cached copies, receivers, labels), and length of each text in it
AGENT_ITEMS_MAX, AGENT_TEXT_LENGTH_MAX = 10_000, 1_000
_AGENT_URL = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?/?", re.IGNORECASE)


class Agents:
    """Answers the agents' heartbeats.

    ``latest``: host → its agent's last heartbeat. Other parts read it; only this class changes it. ``managed``: the receivers
    that the driver keeps running. ``host_timeout_seconds``: how long after its last heartbeat an agent keeps its host's
    address.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        driver_epoch: int,
        latest: dict[str, LastAgentHeartbeat],
        receiver_heartbeats: Mapping[str, LastHeartbeat],
        managed: ManagedReceivers,
        host_timeout_seconds: float,
    ) -> None:
        self.latest = latest
        self.managed = managed
        self._recorder = recorder
        self._driver_epoch = driver_epoch
        self._receiver_heartbeats = receiver_heartbeats
        self._host_timeout_seconds = host_timeout_seconds

    def heartbeat(self, request: m.AgentHeartbeatRequest, now: float) -> m.AgentHeartbeatAnswer:
        """Store the heartbeat, and answer with the blocks to delete and the receivers to start or stop.

        Delete commands are the open clean-ups of the host; a clean-up's number is its command's version. Raises UsageError,
        RefusedError.
        """
        _check(request)
        before = self.latest.get(request.host)
        if before is None:
            self._make_room(now)
        else:
            self._check_url(request, before, now)
        copies = request.copies if request.copies is not None else before.copies if before is not None else ()
        kept = msgspec.structs.replace(request, old_blocks=(), copies=None)
        self.latest[request.host] = LastAgentHeartbeat(kept, now, copies)
        commands = self._deletions(request) + self.managed.take_heartbeat(request, now)
        return m.AgentHeartbeatAnswer(driver_epoch=self._driver_epoch, commands=commands)

    def place_receivers(self, now: float) -> tuple[str, ...]:
        """Carry out one placing round. Return a sentence for each change of a managed receiver since the last round."""
        self.managed.run_round(
            now,
            {host: latest.at for host, latest in self.latest.items()},
            {receiver_id: latest.at for receiver_id, latest in self._receiver_heartbeats.items()},
        )
        return tuple(self.managed.notes())

    def _check_url(self, request: m.AgentHeartbeatRequest, before: LastAgentHeartbeat, now: float) -> None:
        """Raise RefusedError while another agent of the host is active: tasks send their tokens to the agent's address, and
        receivers send replicas."""
        silent_seconds = now - before.at
        if (
            request.url != before.heartbeat.url
            and before.heartbeat.state == "active"
            and silent_seconds < self._host_timeout_seconds
        ):
            raise RefusedError(
                f"host {request.host!r} has an agent at {before.heartbeat.url}, whose last heartbeat was {silent_seconds:.0f} s "
                f"ago; one at {request.url} is accepted when that agent has ended, or after {self._host_timeout_seconds:g} s "
                "without a heartbeat",
                "other-url",
            )

    def _make_room(self, now: float) -> None:
        """Forget the agent that was silent longest if there are too many. Raises RefusedError."""
        if len(self.latest) < AGENTS_MAX:
            return
        host, latest = min(self.latest.items(), key=lambda item: item[1].at)
        if now - latest.at < AGENT_FORGOTTEN_SECONDS:
            raise RefusedError(
                f"{AGENTS_MAX} hosts have agents with a heartbeat within {AGENT_FORGOTTEN_SECONDS:g} s, the maximum",
                "too-many",
            )
        del self.latest[host]
        self.managed.forget(host)

    def _deletions(self, request: m.AgentHeartbeatRequest) -> tuple[m.Command, ...]:
        """Return the host's open clean-ups as commands, after the acknowledged ones were journalled as done.

        A host has at most one open clean-up. If it has none, a new one is intended, of the blocks there that nothing needs. If
        the agent could not delete some blocks of the open one, a new clean-up names these again beside others, and replaces it.
        """
        state = self._recorder.state
        done = [c.number for c in self._open_cleanups(request.host) if c.number <= request.acknowledged]
        self._recorder.apply(*(ev.CleanupDone(number) for number in done))
        tried = self._open_cleanups(request.host)
        if all(cleanup.number <= request.attempted for cleanup in tried):
            undeleted = set(request.undeleted)
            stuck = tuple(block for cleanup in tried for block in cleanup.blocks if block in undeleted)
            going: tuple[str, ...] = ()
            if tried:  # while no clean-up is open, Deletion intends those of superfluous copies
                going = tuple(itertools.islice(state.index.superfluous.get(request.host, ()), COPIES_AT_ONCE))
            going = going or tuple(
                block
                for block in request.old_blocks
                if block not in undeleted and (is_stray(state, block) or is_left_over(state, block, request.host))
            )
            going = going or to_give_up(state, request.host, request.short_bytes)
            if going:
                blocks = (*stuck, *going)[:COPIES_AT_ONCE]
                self._recorder.apply(
                    *(ev.CleanupDone(cleanup.number) for cleanup in tried),
                    ev.CleanupIntended(number=state.cleanup_count + 1, host=request.host, blocks=blocks),
                )
        return tuple(
            m.Command(
                version=cleanup.number,
                driver_epoch=self._driver_epoch,
                kind="delete",
                blocks=tuple(f"{state.stream}/{block}" for block in cleanup.blocks),
            )
            for cleanup in self._open_cleanups(request.host)
        )

    def _open_cleanups(self, host: str) -> list[Cleanup]:
        return [c for c in self._recorder.state.cleanups.values() if c.host == host and c.blocks]


def _check(beat: m.AgentHeartbeatRequest) -> None:
    """Raise UsageError for a heartbeat with values that no agent sends: the driver stores it and shows it to others."""
    check_names(("host", beat.host))
    if not _AGENT_URL.fullmatch(beat.url):
        raise UsageError(
            f"host {beat.host}: an agent's url is http:// or https:// with a host and a port, nothing else"
        )
    lists = (beat.copies or (), beat.old_blocks, beat.labels, beat.receivers, beat.damaged, beat.undeleted)
    if max(map(len, lists)) > AGENT_ITEMS_MAX:
        raise UsageError(
            f"host {beat.host}: an agent's heartbeat names at most {AGENT_ITEMS_MAX} copies, blocks, labels or receivers"
        )
    named = (*beat.labels, *beat.old_blocks, *beat.damaged, *beat.undeleted, *(beat.copies or ()))
    texts = (beat.url, beat.instance_id, beat.state, beat.release, beat.undeleted_cause, *named)
    of_receivers = (text for r in beat.receivers for text in (r.receiver_id, r.last_line))
    if max(map(len, (*texts, *of_receivers))) > AGENT_TEXT_LENGTH_MAX:
        raise UsageError(
            f"host {beat.host}: a text in an agent's heartbeat has at most {AGENT_TEXT_LENGTH_MAX} characters"
        )
