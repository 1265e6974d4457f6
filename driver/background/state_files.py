"""Deletes files of keyed states that no version needs: those of killed and failed runs, and of versions that are no longer kept.

A file is needed while a manifest lists it that the journal keeps, or that a snapshot copy may still name (INV-8). Of the other
files, those of older journal epochs, of completed batches and of failed attempts can become part of no version any more: a
completion by an older driver is refused (INV-4). Files of newer epochs and of the newest attempt at an unfinished batch are left
alone. A deletion that a crash cut off is found again in the next round, because each round lists the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from driver.journal.state import State
from driver.tracker.requests import Ask, Read
from forebay.model.errors import CorruptionError, NewerVersionError
from forebay.process import failpoints
from wal.keyed import files
from wal.storage import KeepsFolders, Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NeededVersions:
    """A copy of what the journal says of keyed states. ``manifests``: path → SHA-256, of every version that is needed.
    ``unfinished``: batches that may still complete. ``dropped_before_rebuild``: manifests of versions that were dropped before
    the journal was rebuilt; they may have been deleted before it too."""

    manifests: dict[str, bytes]
    unfinished: frozenset[int]
    dropped_before_rebuild: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadNeededVersions(Read[NeededVersions]):
    """Reads the versions of keyed states that are needed."""

    def read(self, state: State) -> NeededVersions:
        manifests = {path: dropped.sha256 for path, dropped in state.dropped_versions.items()}
        for known in state.keyed.values():
            manifests.update((v.manifest, v.sha256) for v in (*known.versions, *known.replaced))
        return NeededVersions(
            manifests,
            frozenset({b.batch_id for b in state.unfinished()} | state.replaying.keys()),
            frozenset(path for path, dropped in state.dropped_versions.items() if dropped.event < 0),
        )


def garbage(paths: Iterable[str], needed: Set[str], unfinished: Set[int], epoch: int) -> list[str]:
    """Return which of ``paths`` can be deleted. ``needed``: paths of manifests and of the files that they list. ``epoch``: the
    journal epoch of this driver."""
    places = {path: place for path in paths if (place := files.parse(path)) is not None}
    newest: dict[tuple[str, int, int], int] = {}  # state, batch and epoch → the newest run
    for place in places.values():
        newest[place[:3]] = max(place.run, newest.get(place[:3], 0))
    return [
        path
        for path, place in places.items()
        if path not in needed
        and place.epoch <= epoch
        and (place.epoch < epoch or place.batch_id not in unfinished or place.run < newest[place[:3]])
    ]


class StateFiles:
    """Deletes the files that no version needs. ``ask``: sends a request to the decision loop. ``epoch``: of this driver.
    ``newest_run``: returns the number of the newest run that has opened a state in this process; 0: there is none."""

    def __init__(
        self, ask: Ask, wal: Storage, *, stream: str, epoch: int, newest_run: Callable[[], int] = lambda: 0
    ) -> None:
        self._ask = ask
        self._wal = wal
        self._stream = stream
        self._epoch = epoch
        self._listed: dict[str, frozenset[str]] = {}  # manifest → the files that it lists
        self._newest_run = newest_run
        #: what the last whole round saw, and the newest run before it
        self._seen: tuple[NeededVersions, int] | None = None
        self._left = True  # whether the last whole round left files
        self._logged = False

    def clean(self) -> int:
        """Delete the files that no version needs, unless nothing has changed since the last call. Return how many.

        Raises StoreError; the call may be repeated.
        """
        newest_run = self._newest_run()
        versions = self._ask(ReadNeededVersions())
        if self._seen == (versions, newest_run) or not (self._left or versions.manifests or newest_run):
            return 0
        # listed first: the batch of a file in the list then is among the unfinished ones, or its manifest among those needed
        listed = list(self._wal.list(files.states_folder(self._stream)))
        versions = self._ask(ReadNeededVersions())
        try:
            needed = self._needed(versions)
        except (CorruptionError, NewerVersionError) as error:
            if not self._logged:
                log.error("files of keyed states are kept, because a manifest can't be read: %s", error)
            self._logged = True
            return 0
        self._logged = False
        paths = garbage(listed, needed, versions.unfinished, self._epoch)
        if paths:
            failpoints.hit("state.before-clean")
        for number, path in enumerate(paths):
            self._wal.delete(path)
            if number == 0:
                failpoints.hit("state.mid-clean")
        if isinstance(self._wal, KeepsFolders):
            for folder in sorted({path.rpartition("/")[0] for path in paths}):
                self._wal.remove_folder(folder)
        if paths:
            log.info("deleted %d files of keyed states that no version needs", len(paths))
        self._seen = versions, newest_run
        self._left = len(listed) > len(paths)
        return len(paths)

    def _needed(self, versions: NeededVersions) -> Set[str]:
        """Return the paths of the manifests and of all files that they list. Each manifest is read once."""
        self._listed = {path: listed for path, listed in self._listed.items() if path in versions.manifests}
        for path, sha256 in versions.manifests.items():
            if path not in self._listed:
                if path in versions.dropped_before_rebuild and not self._wal.exists(path):
                    continue
                manifest = files.read_manifest(self._wal, path, sha256)
                self._listed[path] = frozenset(file.path for shard in manifest.shards for file in shard)
        return frozenset(self._listed).union(*self._listed.values())
