"""Joint jobs in one process: which streams lead and follow (``driver.joins``), and whether they fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from driver.batches.job.engine import NamedJob
from driver.batches.joint.jobs import JointFollower, JointLeader, JointMember
from driver.batches.joint.streams import JointStreams
from driver.main import find_jobs
from forebay.model.errors import SettingsError
from forebay.settings.schema import Settings


def joining(streams: Sequence[Settings]) -> list[Settings]:
    """Return the settings of ``streams``, with the first one as the leader of all others, unless one has ``driver.joins``."""
    if len(streams) < 2 or any(settings.driver.joins for settings in streams):
        return list(streams)
    first, *others = streams
    driver = msgspec.structs.replace(first.driver, joins=tuple(settings.stream for settings in others))
    return [msgspec.structs.replace(first, driver=driver), *others]


def joint_members(streams: Sequence[Settings]) -> dict[str, JointMember]:
    """Return stream → its part in a joint job, without the streams that have none.

    Raises SettingsError if ``driver.joins`` names a stream that is not among ``streams``, or if a stream can't take part.
    """
    by_name = {settings.stream: settings for settings in streams}
    members: dict[str, JointMember] = {}
    for leader in streams:
        names = leader.driver.joins
        if not names:
            continue
        for name in names:
            if name not in by_name:
                raise SettingsError(
                    f"driver.joins: stream {leader.stream!r} joins {name!r}, which is not in this process; its streams are "
                    f"{', '.join(by_name)}"
                )
        for name in (leader.stream, *names):
            if name in members or (name == leader.stream and name in names) or names.count(name) > 1:
                raise SettingsError(f"driver.joins: stream {name!r} would take part in two joint jobs, or twice in one")
        for settings in (leader, *(by_name[name] for name in names)):
            for obstacle in _obstacles(settings, leader):
                raise SettingsError(
                    f"stream {settings.stream!r} can't take part in the joint job of stream {leader.stream!r}: {obstacle}"
                )
        shared = JointStreams(leader.stream, names)
        members[leader.stream] = JointLeader(shared, leader.stream, leader.driver.empty_batches == "deliver")
        members.update((name, JointFollower(shared, name)) for name in names)
    return members


def _obstacles(settings: Settings, leader: Settings) -> Iterator[str]:
    driver, leading = settings.driver, leader.driver
    if driver.batch_interval <= 0:
        yield 'driver.batch_interval = "0s" ends no interval, and joint batches are made at the end of one: set an interval'
    if driver.batch_interval != leading.batch_interval:
        yield (
            f"driver.batch_interval is {driver.batch_interval:g} s, and that of {leader.stream!r} is "
            f"{leading.batch_interval:g} s: set the same one"
        )
    if driver.concurrent_jobs > 1:
        yield f"driver.concurrent_jobs is {driver.concurrent_jobs}: joint batches run one after the other; remove this key"
    if driver.max_queued_batches is not None:
        yield "driver.max_queued_batches: a joint batch is made only when its job can begin; remove this key"
    if driver.engine != leading.engine:
        yield f"driver.engine is {driver.engine!r}, and that of {leader.stream!r} is {leading.engine!r}: set the same one"
    if settings is not leader and driver.job is not None:
        yield "driver.job: its batches are for the job of the other stream; remove this key"


def jobs_of(settings: Settings, member: JointMember | None, named: Sequence[NamedJob] = ()) -> tuple[NamedJob, ...]:
    """Return the jobs of a stream's driver: ``named``, otherwise those of ``driver.job``. ``member``: its part in a joint job.
    Raises SettingsError, UsageError."""
    if member is None:
        return tuple(named) or find_jobs(settings)
    return member.jobs(tuple(named) or (find_jobs(settings) if member.leads else ()))
