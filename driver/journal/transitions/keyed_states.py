"""Changes of keyed states: new versions, versions that are no longer kept, and the versions during a replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from driver.journal.state import BrokenInvariant, State
from driver.journal.versions import DroppedVersion, KeyedVersions, StateCommit, StateVersion


def states_committed(state: State, batch_id: int, commits: Iterable[StateCommit]) -> None:
    """Add the versions that an output of the batch has made. They are of the batch's first run or of a replay."""
    for commit in commits:
        known = state.keyed.get(commit.name, KeyedVersions())
        if known.versions and known.versions[-1].batch_id >= batch_id:
            raise BrokenInvariant(f"batch {batch_id} changed state {commit.name} twice, or after a later batch (INV-3)")
        versions = (*known.versions, StateVersion(batch_id, commit.manifest, commit.sha256))
        dropped, kept = versions[: -commit.versions - 1], versions[-commit.versions - 1 :]
        _drop(state, dropped)
        state.keyed[commit.name] = msgspec.structs.replace(
            known, versions=kept, dropped_id=dropped[-1].batch_id if dropped else known.dropped_id
        )


def states_rewound(state: State, batch_id: int) -> None:
    """Begin a replay from ``batch_id`` on: it reads the versions before this batch, and replaces the later ones."""
    for name, known in state.keyed.items():
        if not is_readable_before(known, batch_id):
            raise BrokenInvariant(f"a replay needs a version of state {name} that is no longer kept (INV-8)")
        before = tuple(version for version in known.versions if version.batch_id < batch_id)
        state.keyed[name] = msgspec.structs.replace(known, versions=before, replaced=known.versions[len(before) :])


def states_replayed(state: State) -> None:
    """End a replay: nothing needs the versions any more that it has replaced."""
    for name, known in tuple(state.keyed.items()):
        _drop(state, known.replaced)
        if known.versions:
            state.keyed[name] = msgspec.structs.replace(known, replaced=())
        else:  # the corrected job no longer uses it
            del state.keyed[name]


def is_readable_before(known: KeyedVersions, batch_id: int) -> bool:
    """Whether the version that ``batch_id`` read is kept, or the batch was the first one to use the state."""
    return known.dropped_id == 0 or any(version.batch_id < batch_id for version in known.versions)


def _drop(state: State, versions: Sequence[StateVersion]) -> None:
    for version in versions:
        state.dropped_versions[version.manifest] = DroppedVersion(version.sha256, state.events)
