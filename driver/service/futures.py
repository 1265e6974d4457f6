"""Futures that are already finished, for answers that do not need the decision loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from forebay.model.errors import ForebayError, UnreachableError

Result = TypeVar("Result")


def outcome(function: Callable[[], Result]) -> Future[Result]:
    """Return a finished future with the result of ``function`` or with the ForebayError that it raised."""
    finished: Future[Result] = Future()
    try:
        finished.set_result(function())
    except ForebayError as error:
        finished.set_exception(error)
    return finished


def refused(reason: str) -> Future[Result]:
    """Return a finished future with an UnreachableError: the sender tries again later."""
    return failed(UnreachableError(reason))


def failed(error: ForebayError) -> Future[Result]:
    """Return a finished future with ``error``."""
    finished: Future[Result] = Future()
    finished.set_exception(error)
    return finished
