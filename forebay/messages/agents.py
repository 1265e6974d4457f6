"""Heartbeats of agents."""

from __future__ import annotations

from forebay.messages.commands import Command
from forebay.messages.message import Message
from forebay.model.bounds import Amount, Number, Size, Text


class ReceiverProcess(Message, frozen=True, kw_only=True, rename={"last_line": "last_words"}):
    """A managed receiver at its agent. ``driver_epoch`` and ``version`` are those of the command that started it."""

    receiver_id: Text
    driver_epoch: Number
    version: Number
    running: bool
    pid: Number = 0  # 0: it does not run
    #: negative: the signal that ended it; None: it runs, or could not be started
    exit_code: int | None = None
    last_line: Text = ""  # last line that it wrote before it ended


class AgentHeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/agents/heartbeat."""

    #: active | draining (it is about to end: until it is active again, tasks read its blocks elsewhere)
    state: str = "active"

    host: str
    url: str
    instance_id: str
    acknowledged: Number
    blocks: Number
    used_bytes: Size
    free_bytes: Size
    #: ids of blocks stored for a while; the driver deletes those that no receiver can report any more
    old_blocks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # key=value
    capacity: Number = 0  # maximum number of managed receivers on the host now
    receivers: tuple[ReceiverProcess, ...] = ()  # running receivers, and of each other one the end of its last start
    load: Amount = 0.0  # load average of one minute, divided by the number of processors
    requests: Number = 0  # requests under way, most of them for blocks
    short_bytes: Size = 0  # bytes by which its blocks exceed the quota, or leave too little of the filesystem free
    #: ids of its cached copies, the newest last; None: the same as in the heartbeat before
    copies: tuple[str, ...] | None = None
    release: str = ""  # release of its software
    damaged: tuple[str, ...] = ()  # ids of the first blocks whose damaged copy it moved aside
    damaged_blocks: int = 0  # number of all such blocks
    #: version up to which it tried all delete commands of the answer before; unlike ``acknowledged``, also those that failed
    attempted: Number = 0
    undeleted: tuple[str, ...] = ()  # ids of the blocks of these commands that it could not delete
    undeleted_blocks: Number = 0  # number of such blocks; if ``undeleted`` names fewer, ``attempted`` is 0
    undeleted_cause: Text = ""  # why it could not delete the first one; names the file


class AgentHeartbeatAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`AgentHeartbeatRequest`."""

    driver_epoch: Number
    commands: tuple[Command, ...] = ()
