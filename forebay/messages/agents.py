"""Heartbeats of agents."""

from __future__ import annotations

from forebay.messages.commands import Command
from forebay.messages.message import Message
from forebay.model.values import Amount, Number, Size, Text


class ReceiverProcess(Message, frozen=True, kw_only=True):
    """A managed receiver at its agent. ``driver_epoch`` and ``version``: of the command that started it."""

    receiver_id: Text
    driver_epoch: Number
    version: Number
    running: bool
    pid: Number = 0  # 0 unless it runs
    exit_code: int | None = (
        None  # negative: the signal that ended it; None while it runs, or if it could not be started
    )
    last_words: Text = ""  # of one that ended: the last line that it wrote


class AgentHeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/agents/heartbeat."""

    #: active | draining (it is about to end: tasks are to look elsewhere for its blocks, until it is active again)
    state: str = "active"

    host: str
    url: str
    instance_id: str
    acknowledged: Number
    blocks: Number
    used_bytes: Size
    free_bytes: Size
    #: ids of blocks that have lain there for a while, so that those which nobody will ever report can be told to go
    old_blocks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # key=value
    capacity: Number = 0  # managed receivers that the host may run now
    receivers: tuple[ReceiverProcess, ...] = ()  # those that run, and how the last start of each other one ended
    load: Amount = 0.0  # processes that ran or waited in the last minute, by processor
    requests: Number = 0  # that it is answering now: blocks on their way, above all
    short_bytes: Size = 0  # by how much its blocks pass the quota, or the share of the filesystem that is to stay free
    #: ids of the blocks that it was given copies of, the newest last; None: as in the heartbeat before
    copies: tuple[str, ...] | None = None
    release: str = ""  # of its software
    #: ids of blocks of which it set a damaged copy aside, the first ones; and how many there are
    damaged: tuple[str, ...] = ()
    damaged_blocks: int = 0


class AgentHeartbeatAnswer(Message, frozen=True, kw_only=True):
    driver_epoch: Number
    commands: tuple[Command, ...] = ()
