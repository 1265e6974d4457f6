"""Versions of keyed states, as the journal names them."""

from __future__ import annotations

import msgspec

from forebay.model.bounds import Sha256


class StateCommit(msgspec.Struct, frozen=True):
    """A new version of a keyed state, made by the run that the event completes.

    ``manifest``: path of its manifest in the WAL's store; ``sha256``: the manifest's. ``versions``: how many earlier versions are
    kept from now on.
    """

    name: str
    manifest: str
    sha256: Sha256
    versions: int


class StateVersion(msgspec.Struct, frozen=True):
    """A version of a keyed state, made by a batch. ``manifest``, ``sha256``: as in :class:`StateCommit`."""

    batch_id: int
    manifest: str
    sha256: Sha256


class DroppedVersion(msgspec.Struct, frozen=True):
    """A version of a keyed state that is no longer kept. ``event``: the number of the event that dropped it."""

    sha256: Sha256
    event: int


class KeyedVersions(msgspec.Struct, frozen=True):
    """The versions of a keyed state that are kept, oldest first. A batch reads the newest one.

    ``dropped_id``: the batch of the newest version that is no longer kept; 0: all are. ``replaced``: while a replay runs, the
    versions that it replaces.
    """

    versions: tuple[StateVersion, ...] = ()
    dropped_id: int = 0
    replaced: tuple[StateVersion, ...] = ()
