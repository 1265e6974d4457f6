"""Files of keyed states: which are deleted, which stay, and what the journal keeps of versions."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from driver.background.state_files import StateFiles, garbage
from driver.decisions.replay import RewindTo
from driver.journal.versions import KeyedVersions, StateCommit
from driver.tracker.requests import BeginReplay, Complete, CompleteOutput, SkipBatch
from forebay.model.errors import AfterReplayError, RefusedError
from forebay.model.identifiers import numbered
from tests.support.state.tracked import STREAM, TOPIC, Tracked
from wal.keyed import files
from wal.storage import MemoryStorage

numbers = itertools.count(1)
EPOCH = numbered(1, 2)


class Kept:
    """A stream whose batches change the state ``s``; each version has one file of its own and the newest one of the version
    before it."""

    def __init__(self) -> None:
        self.t = Tracked(retention_ms=1 << 40)
        self.wal = MemoryStorage(f"states-{next(numbers)}")
        self.epoch = self.t.register()
        self.token = self.t.claim(self.epoch).view.token
        self.run = 0
        self.before: tuple[files.ShardFile, ...] = ()
        self.cleaning = StateFiles(self.t.ask, self.wal, stream=STREAM, epoch=EPOCH, newest_run=lambda: self.run)

    def write(self, batch_id: int, epoch: int = EPOCH, versions: int = 2) -> StateCommit:
        self.run += 1
        folder = files.run_folder(STREAM, "s", batch_id, epoch, self.run)
        file = files.ShardFile(f"{folder}/0000-{'0' * 16}.arrow", 1, "0" * 64, 1, 0, 0)
        self.wal.put_new(file.path, b"x")
        manifest = files.Manifest(
            format=1, stream=STREAM, name="s", batch_id=batch_id, epoch=epoch, key=("k",), schema=b"", forgotten_ms=0,
            shards=((*self.before[-1:], file),),
        )  # fmt: skip
        self.before = (file,)
        path = files.manifest_path(folder)
        return StateCommit("s", path, files.put_manifest(self.wal, path, manifest), versions)

    def batch(self, versions: int = 2) -> int:
        t = self.t
        t.take_in(self.epoch, self.token, t.state.partitions[f"{TOPIC}/0"].position + 1)
        batch_id = t.batch()
        self.complete(batch_id, versions=versions)
        return batch_id

    def complete(self, batch_id: int, replay: int = 0, versions: int = 2) -> None:
        self.t.say(Complete(batch_id, self.t.now_ms, 1, replay, states=(self.write(batch_id, versions=versions),)))

    @property
    def known(self) -> KeyedVersions:
        return self.t.state.keyed["s"]

    @property
    def batches(self) -> list[int]:
        return [version.batch_id for version in self.known.versions]

    @property
    def stored(self) -> set[str]:
        """The folders of the runs whose files are stored."""
        return {path.rpartition("/")[0].rpartition("/")[2] for path in self.wal.list(files.states_folder(STREAM))}

    def folder(self, batch_id: int, run: int, epoch: int = EPOCH) -> str:
        return files.run_folder(STREAM, "s", batch_id, epoch, run).rpartition("/")[2]


def test_a_version_is_kept_for_replays_and_then_until_both_snapshot_copies_know_that_it_is_dropped() -> None:
    """INV-8: a rebuild goes on from a snapshot copy, which may still name it."""
    kept = Kept()
    batches = [kept.batch() for _ in range(5)]
    assert kept.batches == batches[2:], "the newest one, and two before it"
    assert kept.known.dropped_id == batches[1]
    assert kept.cleaning.clean() == 0, "no copy knows that any is dropped"
    kept.t.copy(1)
    assert kept.cleaning.clean() == 0
    kept.t.copy(1)
    # the third version lists the file of the second one too
    assert kept.cleaning.clean() == 3
    assert kept.stored == {kept.folder(batch, run) for run, batch in enumerate(batches[1:], 2)}
    assert kept.cleaning.clean() == 0


def test_files_of_failed_killed_and_outdated_runs_are_deleted_and_those_that_may_count_stay() -> None:
    """INV-4: an older driver's run can't complete; a newer driver's files are not this driver's concern."""
    kept = Kept()
    kept.batch()
    kept.t.take_in(kept.epoch, kept.token, 10)
    running = kept.t.batch()
    for epoch in (numbered(1, 1), numbered(1, 3), EPOCH, EPOCH):
        kept.write(running, epoch)  # an outdated driver, a newer one, a failed attempt, the running one
    assert kept.cleaning.clean() == 4
    stay = {kept.folder(running, 3, numbered(1, 3)), kept.folder(running, 5), kept.folder(numbered(1, 1), 1)}
    assert kept.stored == stay
    kept.t.say(SkipBatch(running, kept.t.now_ms, 1, "ann"))
    assert kept.cleaning.clean() == 2
    assert kept.stored == stay - {kept.folder(running, 5)}


def test_what_a_batch_writes_while_the_clean_up_looks_stays() -> None:
    """INV-3: a batch that begins between two steps of a round may write, and complete, before the next step."""
    kept = Kept()
    kept.batch()
    kept.batch()
    begun: list[int] = []
    read, list_ = kept.wal.read, kept.wal.list

    def begin() -> None:
        kept.t.take_in(kept.epoch, kept.token, kept.t.state.partitions[f"{TOPIC}/0"].position + 1)
        begun.append(kept.t.batch())
        kept.write(begun[-1])
        if len(begun) == 2:
            kept.complete(begun[0])

    def read_and_begin(path: str, *rest: int) -> bytes:
        begin()
        return read(path, *rest)

    def list_and_begin(prefix: str) -> Any:
        begin()
        found = list_(prefix)
        begin()
        return found

    kept.wal.read, kept.wal.list = read_and_begin, list_and_begin  # type: ignore[method-assign, assignment]
    kept.cleaning.clean()
    kept.wal.read, kept.wal.list = read, list_  # type: ignore[method-assign]
    listed = files.read_manifest(kept.wal, kept.known.versions[-1].manifest, kept.known.versions[-1].sha256)
    for path in (file.path for shard in listed.shards for file in shard):
        assert kept.wal.read(path) == b"x"
    assert {place.batch_id for path in kept.wal.list("") if (place := files.parse(path))} >= set(begun)


def test_nothing_is_deleted_while_a_manifest_can_not_be_read() -> None:
    """INV-5."""
    kept = Kept()
    kept.batch()
    kept.write(kept.batch(), numbered(1, 1))
    manifest = kept.known.versions[-1].manifest
    whole = kept.wal.read(manifest)
    kept.wal.replace(manifest, b"damaged")
    assert kept.cleaning.clean() == 0
    kept.wal.replace(manifest, whole)
    assert kept.cleaning.clean() == 2


def test_a_rebuilt_journal_does_not_need_manifests_that_were_deleted_before_the_rebuild(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A snapshot copy names versions that were dropped before it, and the driver deletes them when the next copy knows this."""
    kept = Kept()
    batches = [kept.batch() for _ in range(5)]
    dropped = dict(kept.t.state.dropped_versions)
    kept.t.copy()
    assert kept.cleaning.clean() == 3
    for path, version in dropped.items():  # as a rebuild from this copy has them
        kept.t.state.dropped_versions[path] = msgspec.structs.replace(version, event=-1)
    rebuilt = StateFiles(kept.t.ask, kept.wal, stream=STREAM, epoch=EPOCH)
    kept.write(batches[0])
    assert rebuilt.clean() == 2, "garbage is deleted"
    assert not caplog.records
    kept.batch()
    (last,) = kept.t.state.dropped_versions.keys() - dropped.keys()
    kept.wal.delete(last)
    rebuilt = StateFiles(kept.t.ask, kept.wal, stream=STREAM, epoch=EPOCH)
    assert rebuilt.clean() == 0, "any other missing manifest is damage (INV-5)"
    assert "a file of a state is missing" in caplog.text


def test_files_of_a_state_without_any_version_are_deleted() -> None:
    """The runs failed or were killed before the first completion, and then the job was changed."""
    kept = Kept()
    kept.write(numbered(1, 1), numbered(1, 1))
    kept.run = 0  # of this process
    lists: list[str] = []
    list_ = kept.wal.list

    def noted(prefix: str) -> Any:
        lists.append(prefix)
        return list_(prefix)

    kept.wal.list = noted  # type: ignore[method-assign]
    assert kept.cleaning.clean() == 2
    assert kept.stored == set()
    lists.clear()
    kept.t.take_in(kept.epoch, kept.token, 10)
    running = kept.t.batch()
    assert kept.cleaning.clean() == 0
    assert not lists, "a stream without states is not listed in each round"
    kept.write(running)
    kept.write(running)
    assert kept.cleaning.clean() == 2, "the failed attempt"
    kept.t.say(SkipBatch(running, kept.t.now_ms, 1, "ann"))
    assert kept.cleaning.clean() == 2
    assert kept.stored == set()


def test_files_of_an_attempt_are_deleted_when_the_next_one_has_begun() -> None:
    """Nothing changes in the journal while a batch fails again and again."""
    kept = Kept()
    kept.batch()
    kept.t.take_in(kept.epoch, kept.token, 10)
    running = kept.t.batch()
    kept.write(running)
    assert kept.cleaning.clean() == 0
    kept.write(running)
    assert kept.cleaning.clean() == 2
    assert kept.folder(running, 3) in kept.stored


def test_each_damage_of_a_manifest_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    for count in (1, 2):
        kept.batch()
        cleaning = kept.cleaning
        cleaning._listed.clear()
        manifest = kept.known.versions[-1].manifest
        whole = kept.wal.read(manifest)
        kept.wal.replace(manifest, b"damaged")
        cleaning.clean()
        cleaning.clean()
        assert len(caplog.records) == count
        kept.wal.replace(manifest, whole)
        cleaning.clean()


def test_a_deletion_that_fails_is_repeated() -> None:
    kept = Kept()
    kept.batch()
    kept.write(numbered(1, 1), numbered(1, 1))

    class Failing(Exception):
        pass

    def fail(path: str) -> None:
        raise Failing

    delete, kept.wal.delete = kept.wal.delete, fail  # type: ignore[method-assign]
    with pytest.raises(Failing):
        kept.cleaning.clean()
    kept.wal.delete = delete  # type: ignore[method-assign]
    assert kept.cleaning.clean() == 2


def test_other_files_are_no_garbage() -> None:
    paths = [
        "s/state/readme",
        "s/state/s/1-0000010000000001-000001/other.txt",
        "s/blocks/r1/0000010000000001/00000001.seg",
    ]
    assert garbage(paths, frozenset(), frozenset(), EPOCH) == []


def test_a_replay_replaces_versions_and_needs_the_one_before_its_first_batch() -> None:
    kept = Kept()
    batches = [kept.batch() for _ in range(5)]
    with pytest.raises(RefusedError, match=r"state 's' no longer has the version that batch \d+ read"):
        kept.t.say(BeginReplay(RewindTo(batches[2]), (), 0, "ann"))
    kept.t.say(BeginReplay(RewindTo(batches[3]), (), 0, "ann"))
    assert kept.batches == batches[2:3], "the first batch reads the version before it"
    kept.t.copy()
    assert kept.cleaning.clean() == 3, "the replaced versions are kept while the replay runs"
    with pytest.raises(RefusedError, match="completed already"):
        kept.complete(batches[2], replay=1)


def test_a_batch_that_ran_when_a_replay_began_changes_its_state_only_after_it() -> None:
    """INV-3: it has read the version that the replay replaces."""
    kept = Kept()
    batches = [kept.batch() for _ in range(3)]
    kept.t.take_in(kept.epoch, kept.token, 10)
    running = kept.t.batch()
    kept.t.say(BeginReplay(RewindTo(batches[1]), (), 0, "ann"))
    with pytest.raises(AfterReplayError, match="runs again after replay 1"):
        kept.complete(running)
    output = CompleteOutput(running, "first", kept.t.now_ms, states=(kept.write(running),))
    with pytest.raises(AfterReplayError):
        kept.t.say(output)
    for batch_id in batches[1:]:
        kept.complete(batch_id, replay=1)
    kept.t.say(output)
    assert kept.batches == [*batches[1:], running]
    with pytest.raises(RefusedError, match=f"outputs of batch {running} have changed a keyed state"):
        kept.t.say(BeginReplay(RewindTo(batches[2]), (), 0, "ann"))


def test_a_replay_ends_with_its_own_versions() -> None:
    kept = Kept()
    batches = [kept.batch() for _ in range(3)]
    first_runs = [version.manifest for version in kept.known.versions]
    kept.t.say(BeginReplay(RewindTo(batches[0]), (), 0, "ann"))
    assert kept.batches == []
    assert [version.manifest for version in kept.known.replaced] == first_runs
    kept.complete(batches[0], replay=1)
    kept.t.say(SkipBatch(batches[1], kept.t.now_ms, 1, "ann", replay=1))
    assert kept.batches == batches[:1], "a skipped batch makes no version, and its first one no longer counts"
    kept.complete(batches[2], replay=1)
    assert kept.batches == [batches[0], batches[2]]
    assert kept.known.replaced == ()
    assert set(first_runs) <= kept.t.state.dropped_versions.keys()
    kept.t.copy()
    assert kept.cleaning.clean() == 5, "the first version of the replay lists a file of the newest one before it"
    assert kept.batch() > batches[2]
