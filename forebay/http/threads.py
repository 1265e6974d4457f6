"""The route that shows what each thread of a service is doing, without values of variables."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from litestar import get
from litestar.handlers import HTTPRouteHandler

from forebay import messages as m

#: maximum number of threads, and of frames of one thread, in an answer
THREADS_MAX, FRAMES_MAX = 1_000, 100


def stacks() -> m.ThreadsAnswer:
    """Return the stack of every Python thread of this process."""
    running = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for ident, frame in islice(sys._current_frames().items(), THREADS_MAX):
        thread = running.get(ident)
        found.append(
            m.ThreadStack(
                name=thread.name if thread is not None else f"thread {ident} of a library",
                daemon=thread is None or thread.daemon,
                frames=tuple(islice(_frames(frame), FRAMES_MAX)),
            )
        )
    return m.ThreadsAnswer(pid=os.getpid(), threads=tuple(sorted(found, key=lambda one: one.name)))


def _frames(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        code = frame.f_code
        # Python 3.10 does not know the class of a function
        yield f"{code.co_filename}:{frame.f_lineno} {getattr(code, 'co_qualname', code.co_name)}"
        frame = frame.f_back


def threads_route(opt: dict[str, Any]) -> HTTPRouteHandler:
    """Return the handler of GET /v1/threads. ``opt``: the roles that may use it."""

    @get(
        "/v1/threads",
        summary="What each thread of this service is doing",
        tags=["people"],
        opt=opt,
        description="Roles: operator",
    )
    async def threads() -> m.ThreadsAnswer:
        return stacks()

    return threads
