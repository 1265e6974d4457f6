"""The inputs of a driver: settings, options, the source, the engine, the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driver.batches.job.engine import Engine, NamedJob
from driver.batches.joint.jobs import JointMember
from driver.listeners.dispatch import Listeners
from forebay.process.clock import Clock
from forebay.settings.schema import Settings
from forebay.sources.kind import Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """Options of one run of a driver.

    ``release``: Forebay's version, as the status shows it. ``take_over``: leads without waiting for another driver's lease to
    end. ``until_caught_up``: stops when all records that the source held at the start are completed. ``standby``: serves, and
    leads when no other driver does. ``waits_when_failed``: as in ``driver.batches.scheduler.Scheduler``.
    ``joint``: the stream's part in a joint job; None: its batches are for its own job.
    """

    release: str
    take_over: bool = False
    until_caught_up: bool = False
    standby: bool = False
    waits_when_failed: bool = False
    joint: JointMember | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a driver was made with. ``upstream``: the source's partitions and offsets."""

    settings: Settings
    upstream: Upstream
    engine: Engine
    jobs: Sequence[NamedJob]
    clock: Clock
    options: DriverOptions
    listeners: Listeners
