"""The threads of a service, for diagnosis."""

from __future__ import annotations

from forebay.messages.message import Message


class ThreadStack(Message, frozen=True, kw_only=True):
    """One thread of a service. ``frames``: ``file:line function``, the innermost first, without values; 100 at most."""

    name: str
    daemon: bool
    frames: tuple[str, ...]


class ThreadsAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/threads. What each thread of the service is doing now."""

    pid: int
    threads: tuple[ThreadStack, ...]
