"""The contract of every store, tested over each kind, with a real server if the store has one."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import cast

import pytest

from driver.journal.events import ReceiverRegistered
from driver.journal.files import claim_path
from driver.journal.leadership.lease import LeaseKeeper
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.log.writing import Journal
from driver.journal.transitions import apply
from forebay.model.errors import CorruptionError, FencedError, StoreError
from forebay.model.identifiers import numbered
from forebay.model.values import Handle
from forebay.settings.stores import STORE_KINDS, scheme_of
from tests.support.forgetful import ForgetfulStorage
from tests.support.segments import durable, writer
from tests.support.stores import BEHIND_A_PROXY, COUNTED, EMULATED, IN_PARTS, LATE, STORES, Store, parameters
from tests.support.unlisted import Unlisted
from wal.segments.frame import FrameKind
from wal.segments.scan import read_frame
from wal.segments.writer import LogWriter
from wal.storage import DatesObjects, KeepsFolders, Storage
from wal.storage.probe import probe

#: a client that writes until it is killed, and says what it has written
_WRITING_CLIENT = """
import sys
from wal.storage import open_storage
import json
storage = open_storage(sys.argv[1], json.loads(sys.argv[2]))
for number in range(1, 1000):
    storage.put_new(f"s/{number:04d}", number.to_bytes(4, "big") * 250_000)
    print(number, flush=True)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Store]]:
    """Starts each store when it is first asked for."""
    started: dict[str, Store] = {}
    with contextlib.ExitStack() as open_ones:

        def get(name: str) -> Store:
            if name not in started:
                started[name] = open_ones.enter_context(STORES[name](tmp_path_factory.mktemp(name)))
            started[name].begin()
            return started[name]

        yield get


@pytest.fixture(params=parameters(STORES))
def store(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters(name for name in STORES if not name.startswith("memory")))
def outliving(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    """A store that does not end with the process that writes."""
    return running(request.param)


@pytest.fixture(params=parameters(name for name in STORES if name not in LATE))
def prompt(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    """A store that carries out nothing later."""
    return running(request.param)


@pytest.fixture(params=parameters(name for name in STORES if name not in (*EMULATED, *LATE)))
def quick(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    """A store for tests of the log that need very many requests, write names again, and need nothing that only an emulator
    does."""
    return running(request.param)


@pytest.fixture(params=parameters(BEHIND_A_PROXY))
def proxied(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters(IN_PARTS))
def in_parts(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters(COUNTED))
def counted(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters([*STORES, "forgetful"]))
def storage(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Storage:
    """Each store, and the store of the simulation."""
    return ForgetfulStorage() if request.param == "forgetful" else running(request.param).open()


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_a_store_that_dates_objects_says_when_one_was_written(store: Store) -> None:
    storage = store.open()
    if not isinstance(storage, DatesObjects):
        assert scheme_of(store.url) in ("file", "memory"), "each remote store has a clock of its own"
        return
    before = time.time()
    storage.put_new("s/dated", b"x")
    written = storage.written_seconds("s/dated")
    assert written is not None and before - 2 <= written <= time.time() + 2, "the server has this machine's clock"
    with pytest.raises(FileNotFoundError):
        storage.written_seconds("s/absent")


def test_put_object_is_read_whole_and_by_range(storage: Storage) -> None:
    storage.put_new("s/blocks/r/1.seg", b"abcdefg")
    assert storage.read("s/blocks/r/1.seg") == b"abcdefg"
    assert storage.read("s/blocks/r/1.seg", 2, 3) == b"cde"
    assert storage.read("s/blocks/r/1.seg", 5, 100) == b"fg"
    assert storage.read("s/blocks/r/1.seg", 100, 5) == b""
    assert storage.read("s/blocks/r/1.seg", 7, 1) == b""
    assert storage.read("s/blocks/r/1.seg", 3) == b"defg"
    assert storage.read("s/blocks/r/1.seg", 3, 0) == b""
    assert storage.size("s/blocks/r/1.seg") == 7


def test_views_of_memory_are_written_as_well_as_bytes(storage: Storage) -> None:
    storage.put_new("a", memoryview(bytearray(b"xyz"))[1:])
    storage.replace("b", bytearray(b"12"))
    assert (storage.read("a"), storage.read("b")) == (b"yz", b"12")


def test_only_an_empty_folder_is_removed_and_a_write_makes_it_again(store: Store) -> None:
    """INV-6: a listing looks into every folder, so those of ended epochs must not stay."""
    storage, writing = store.open(), store.open()
    if not isinstance(storage, KeepsFolders):
        assert not STORE_KINDS[scheme_of(store.url)].moves_folders
        return
    storage.put_new("s/blocks/r/epoch/1.seg", b"one")
    writing.put_new("s/blocks/r/epoch/2.seg", b"two")
    storage.delete("s/blocks/r/epoch/1.seg")
    storage.remove_folder("s/blocks/r/epoch")
    assert storage.list("s/blocks/r") == ["s/blocks/r/epoch/2.seg"]
    storage.delete("s/blocks/r/epoch/2.seg")
    for _ in range(2):
        storage.remove_folder("s/blocks/r/epoch")
    writing.put_new("s/blocks/r/epoch/3.seg", b"three")
    assert storage.list("s/blocks/r") == ["s/blocks/r/epoch/3.seg"]


def test_a_large_object_is_read_back_as_it_was_written(storage: Storage) -> None:
    """INV-4: a store may refuse a taken name before it has read the request, so that its answer is lost with the connection."""
    whole = Random(1).randbytes(33 << 20)
    storage.put_new("s/large", whole)
    assert storage.size("s/large") == len(whole)
    assert storage.read("s/large") == whole
    assert storage.read("s/large", (16 << 20) - 3, 6) == whole[(16 << 20) - 3 : (16 << 20) + 3]
    with pytest.raises(FileExistsError):
        storage.put_new("s/large", whole[::-1])
    assert storage.read("s/large") == whole


def test_a_name_is_created_once(store: Store) -> None:
    """INV-4: epochs and segments are fenced by creation only if absent."""
    storage = store.open()
    storage.put_new("a/c", b"whole")
    with pytest.raises(FileExistsError):
        store.open().put_new("a/c", b"other")
    assert storage.read("a/c") == b"whole"


def test_repeated_put_succeeds(storage: Storage) -> None:
    """INV-4: after an attempt whose outcome is unknown the same bytes are put again; other bytes are another writer's."""
    storage.put_new("a/c", b"mine, 1234")
    storage.put_new("a/c", b"mine, 1234")
    for other in (b"mine, 123", b"mine, 12345", b""):
        with pytest.raises(FileExistsError):
            storage.put_new("a/c", other)
    assert storage.read("a/c") == b"mine, 1234"
    assert storage.list("a") == ["a/c"]


def test_replace_takes_the_place_of_what_was_there(store: Store) -> None:
    store.open().replace("lease", b"one")
    store.open().replace("lease", b"two and more")
    assert store.open().read("lease") == b"two and more"
    assert store.open().list("") == ["lease"]


def test_list_gives_every_file_below_a_folder_sorted(storage: Storage) -> None:
    for path in ("s/b/2", "s/b/1", "s/a", "sx/a", "t"):
        storage.put_new(path, b"x")
    assert storage.list("s") == ["s/a", "s/b/1", "s/b/2"]
    assert storage.list("s/b") == ["s/b/1", "s/b/2"]
    assert storage.list("") == ["s/a", "s/b/1", "s/b/2", "sx/a", "t"]
    assert storage.list("nowhere/at/all") == []
    assert storage.list("t") == []


def test_delete_may_be_repeated(storage: Storage) -> None:
    """INV-8: a delete is repeated after a crash."""
    storage.put_new("s/a", b"x")
    storage.delete("s/a")
    storage.delete("s/a")
    storage.delete("never/was")
    assert not storage.exists("s/a")
    assert storage.list("s") == []
    storage.put_new("s/a", b"again")
    assert storage.read("s/a") == b"again"


def test_missing_file_is_named_in_the_error(storage: Storage) -> None:
    storage.put_new("s/a", b"x")
    for path in ("s/b", "u", "s/a/b", "s"):
        if path == "s" and storage.appendable:
            continue  # a folder: what a file system says of it is its own
        with pytest.raises(FileNotFoundError):
            storage.read(path)
        with pytest.raises(FileNotFoundError):
            storage.size(path)
        assert not storage.exists(path)


@pytest.mark.parametrize(
    "path", ["", "/a", "../a", "a/../b", "a//b", "a/", ".a", "a/.b", "a\0b", "a\n", "-a", "a\\b", "a?b", "a%2e"]
)
def test_no_path_leads_out_of_the_root(storage: Storage, path: str) -> None:
    more = [storage.create] * storage.appendable + [storage.list] * bool(path)
    for use in (storage.read, storage.size, storage.exists, storage.delete, *more):
        with pytest.raises(ValueError, match="path"):
            use(path)
    for write in (storage.put_new, storage.replace):
        with pytest.raises(ValueError, match="path"):
            write(path, b"")


def test_a_store_of_whole_objects_refuses_to_append(storage: Storage) -> None:
    if storage.appendable:
        storage.create("a").close()
        return
    with pytest.raises(StoreError, match="whole objects"):
        storage.create("a")
    assert storage.list("") == []


# ---- crashes and races -----------------------------------------------------------------------------------------------


def test_answered_writes_exist_after_the_server_was_killed(store: Store) -> None:
    """INV-1: durable on return."""
    storage = store.open()
    for number in range(20):
        storage.put_new(f"s/{number}", b"%d" % number * 1000)
    storage.replace("lease", b"newest")
    storage.delete("s/3")
    store.crash()
    for again in (storage, store.open()):
        assert again.read("lease") == b"newest"
        assert [again.read(f"s/{n}") for n in range(20) if n != 3] == [b"%d" % n * 1000 for n in range(20) if n != 3]
        assert not again.exists("s/3")


def test_a_writer_killed_in_the_middle_leaves_whole_objects_only(outliving: Store) -> None:
    """No torn write is ever seen, and nothing that was answered is missing."""
    store = outliving
    for lines in (1, 3):
        client = subprocess.Popen(
            [sys.executable, "-c", _WRITING_CLIENT, store.url, json.dumps(store.options)], stdout=subprocess.PIPE
        )
        assert client.stdout is not None
        told = [int(client.stdout.readline()) for _ in range(lines)]
        client.kill()
        told += [int(line) for line in client.stdout.read().split()]
        client.wait()
        client.stdout.close()
        storage = store.open()
        found = {int(path.rsplit("/", 1)[1]) for path in storage.list("s")}
        assert set(told) <= found
        for number in found:
            assert storage.read(f"s/{number:04d}") == number.to_bytes(4, "big") * 250_000
        for path in storage.list("s"):
            storage.delete(path)


def test_only_one_of_many_creates_a_name(store: Store) -> None:
    """INV-4: also where they share no client."""
    clients = [store.open() for _ in range(4)]
    for round_ in range(4):
        won: list[int] = []
        together = threading.Barrier(8)

        def race(number: int, path: str, together: threading.Barrier = together, won: list[int] = won) -> None:
            together.wait(30)
            try:
                clients[number % 4].put_new(path, b"%d" % number * 1000)
            except FileExistsError:
                return
            won.append(number)

        threads = [threading.Thread(target=race, args=(n, f"epochs/{round_}")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.open().read(f"epochs/{round_}") == b"%d" % won[0] * 1000


def test_several_threads_write_at_the_same_time(storage: Storage) -> None:
    """One storage, many threads."""
    failures: list[BaseException] = []

    def work(writer_number: int) -> None:
        try:
            for number in range(10):
                path = f"s/{writer_number}/{number}"
                storage.put_new(path, path.encode() * 100)
                assert storage.read(path, 0, len(path)) == path.encode()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(storage.list("s")) == 60


def test_the_probe_passes_and_leaves_nothing_behind(prompt: Store) -> None:
    storage = prompt.open()
    probe(storage, "s", itertools.count(1).__next__)
    assert storage.list("") == []


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_blocks_written_are_read_back_by_handle_after_a_crash(store: Store) -> None:
    """INV-1."""
    log = writer(store.open())
    pending = []
    for group in range(3):
        pending += [
            log.append(FrameKind.BLOCK, b"m%d" % n, b"payload %d" % n * 999) for n in (2 * group, 2 * group + 1)
        ]
        log.sync()
    store.crash()
    storage = store.open()
    for number, frame in enumerate(pending):
        assert frame.handle is not None
        assert read_frame(storage, frame.handle).payload.to_pybytes() == b"payload %d" % number * 999
    assert [metadata for metadata, _ in durable(storage)] == [b"m%d" % n for n in range(6)]
    wrong = Handle(pending[0].handle.path, pending[0].handle.offset + 64, 128, 1)  # type: ignore[union-attr]
    with pytest.raises(CorruptionError):
        read_frame(storage, wrong)


def _write(log: LogWriter, metadata: bytes) -> None:
    log.append(FrameKind.BLOCK, metadata, b"x")
    log.sync()


def test_a_second_writer_of_the_same_epoch_is_fenced(store: Store) -> None:
    """INV-4."""
    first, second = writer(store.open()), writer(store.open(), first_uid=5)
    _write(first, b"a")
    with pytest.raises(FencedError):
        _write(second, b"b")
    assert [metadata for metadata, _ in durable(store.open())] == [b"a"]


def test_a_journal_goes_on_after_a_crash_and_an_outdated_driver_is_fenced(store: Store) -> None:
    """INV-4, INV-7."""
    uids = itertools.count(1)

    def lead(owner: str) -> Journal:
        opened, _ = opening.lead(store.open(), "s", owner, 0, lambda: 0.0, lambda: next(uids))
        return opened

    first = lead("one")
    registered = ReceiverRegistered(receiver_id="r1", host="h1", instance_id="i1", epoch=first.epoch)
    first.append([registered])
    first.sync()
    first.check()
    store.crash()
    found = journal.read(store.open(), "s")
    assert found.state is not None
    assert found.state.receivers.keys() == {"r1"}
    second = lead("two")
    with pytest.raises(FencedError):
        first.check()
    second.check()
    again = journal.read(store.open(), "s")
    assert again.epoch == second.epoch
    assert again.state is not None
    assert again.state.receivers.keys() == {"r1"}


def _journal_of_three_epochs(storage: Storage, snapshots: Collection[int]) -> journal.StoredJournal:
    """Epochs with one segment and with several; ``snapshots``: groups of events that one follows. The lease was ended."""
    uids = itertools.count(1)
    number = 0
    for groups in (1, 2, 7):
        keepers: list[LeaseKeeper] = []

        def keep(epoch: int, keepers: list[LeaseKeeper] = keepers) -> None:
            keepers.append(LeaseKeeper(storage, "s", epoch, owner=f"d{epoch}", url="", duration_seconds=600.0))
            keepers[0].start()

        led, state = opening.lead(storage, "s", "d", 0, lambda: 0.0, lambda: next(uids), segment_bytes=1, claimed=keep)
        keepers[0].follow(lambda led=led: led.confirmed)  # type: ignore[misc]
        for group in range(groups):
            number += 1
            registered = ReceiverRegistered(f"r{number}", "h1", "i1", numbered(1, number))
            apply(state, registered)
            led.append([registered])
            led.sync()
            led.check()
            if group in snapshots:
                led.snapshot()
                led.check()
                led.drop_superseded()
        led.close()
        keepers[0].stop()
    return journal.read(storage, "s")


@pytest.mark.parametrize("snapshots", [(), (1, 3)])
def test_journal_without_one_of_its_objects_is_refused_unless_it_is_whole(
    quick: Store, snapshots: tuple[int, ...]
) -> None:
    """INV-5: one removed, cut at several places, or left out of the listings, one at a time. Opening refuses, or has all."""
    storage = quick.open()
    expected = _journal_of_three_epochs(storage, snapshots)
    assert expected.state is not None and expected.state.epochs == 10
    outcomes = Counter[str]()

    def look(fault: str, path: str, seen: Storage) -> None:
        try:
            found = journal.read_beside_a_writer(seen, "s")
        except CorruptionError:
            outcomes[f"{fault} refused"] += 1
            if fault == "removed":
                claimed: list[int] = []
                with pytest.raises(CorruptionError):
                    opening.lead(seen, "s", "next", 0, lambda: 0.0, lambda: 1, claimed=claimed.append)
                storage.delete(claim_path("s", claimed[0]))  # so that the next look has as few epochs to ask for
        else:
            outcomes[f"{fault} whole"] += 1
            assert found.state == expected.state, f"{fault} {path}"

    paths = [path for path in storage.list("s") if "/epochs/" not in path]
    assert sum(path.endswith(".seg") for path in paths) >= 5
    for path in paths:
        look("unlisted", path, cast(Storage, Unlisted(storage, {path})))
        whole = storage.read(path)
        storage.delete(path)
        look("removed", path, storage)
        for length in sorted({0, 40, len(whole) // 2, len(whole) - 1}):
            storage.put_new(path, whole[:length])
            look("cut", path, storage)
            storage.delete(path)
        storage.put_new(path, whole)
    assert outcomes["unlisted refused"] == 0
    assert outcomes["removed refused"] >= 3
    assert outcomes["cut refused"] >= 6
    assert journal.read(storage, "s").state == expected.state
    for path in storage.list("s/epochs"):
        look("unlisted claim", path, cast(Storage, Unlisted(storage, {path})))
        claim = storage.read(path)
        storage.delete(path)
        led, state = opening.lead(storage, "s", "next", 0, lambda: 0.0, lambda: 1)
        led.close()
        assert state == expected.state, path
        with contextlib.suppress(FileExistsError):
            storage.put_new(path, claim)


# ---- faults on the way, where clients speak HTTP with the store ------------------------------------------------------


@pytest.mark.parametrize("kind", ["reset", "reset-after", "silence", "silence-after", "half-answer", "half-request"])
@pytest.mark.parametrize("verb", ["PUT", "GET", "DELETE"])
def test_unanswered_request_is_retried(proxied: Store, kind: str, verb: str) -> None:
    """Whether it was carried out or not: the outcome is the same, and the object is this writer's."""
    assert proxied.proxy is not None
    storage = proxied.open(request_timeout="400ms")
    storage.put_new("s/before", b"before")
    fault = proxied.proxy.arm(kind, verb, times=1)  # type: ignore[arg-type]
    if verb == "PUT":
        storage.put_new("s/a", b"mine" * 100)
        storage.replace("lease", b"l")
        assert storage.read("s/a") == b"mine" * 100
    elif verb == "GET":
        assert storage.read("s/before") == b"before"
        assert storage.exists("s/before")
        assert storage.list("s") == ["s/before"]
    else:
        storage.delete("s/before")
        assert not storage.exists("s/before")
    assert fault.met == 1


@pytest.mark.parametrize("kind", ["reset-after", "silence-after"])
def test_put_without_answer_is_refused_if_another_writers_object_exists(proxied: Store, kind: str) -> None:
    """INV-4: only an object with equal bytes counts as the writer's own."""
    assert proxied.proxy is not None
    storage = proxied.open(request_timeout="400ms")
    storage.put_new("epochs/1", b"somebody else's")
    proxied.proxy.arm(kind, "PUT", times=1)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError):
        storage.put_new("epochs/1", b"mine")
    assert storage.read("epochs/1") == b"somebody else's"


@pytest.mark.parametrize("status", [500, 503, 409])
def test_slow_down_answer_is_retried(proxied: Store, status: int) -> None:
    assert proxied.proxy is not None
    storage = proxied.open()
    proxied.proxy.arm("status", status=status, times=3)
    storage.put_new("s/a", b"x")
    proxied.proxy.arm("status", status=status, times=2)
    assert storage.read("s/a") == b"x"


def test_large_object_is_found_after_its_last_answer_was_lost(in_parts: Store) -> None:
    assert in_parts.proxy is not None
    whole = Random(2).randbytes(11 << 20)
    storage = in_parts.open(request_timeout="2s", part_size="5MiB")
    storage.put_new("s/first", whole)
    for kind in ("silence-after", "reset-after", "half-answer"):
        fault = in_parts.proxy.arm(kind, "POST", skip=1, times=1)  # the second POST ends the upload
        storage.put_new(f"s/{kind}", whole)
        assert fault.met == 1
        assert storage.read(f"s/{kind}") == whole
    with pytest.raises(FileExistsError):
        storage.put_new("s/first", whole[:-1])


def test_upload_in_parts_through_a_repeating_proxy_is_found_or_refused(in_parts: Store) -> None:
    """INV-4: the second request to abort an upload is answered that there is none, whichever writer's object exists."""
    assert in_parts.proxy is not None
    whole = Random(3).randbytes(11 << 20)
    storage = in_parts.open(request_timeout="20s", part_size="5MiB")
    in_parts.proxy.arm("twice")
    storage.put_new("s/large", whole)
    with pytest.raises(FileExistsError):
        storage.put_new("s/large", whole[:-1])
    storage.replace("s/large", whole[1:])
    assert storage.read("s/large") == whole[1:]


def test_a_slow_answer_is_waited_for_and_a_stuck_one_is_not(proxied: Store) -> None:
    assert proxied.proxy is not None
    storage = proxied.open(request_timeout="600ms")
    storage.put_new("s/a", bytes(100_000))
    proxied.proxy.arm("slow", "GET", bytes_per_second=1_000_000, times=1)
    assert storage.read("s/a") == bytes(100_000)
    stuck = proxied.proxy.arm("slow", "GET", bytes_per_second=20_000, times=1)
    proxied.proxy.counts.clear()
    assert storage.read("s/a", 0, 100_000) == bytes(100_000)
    assert stuck.met == 1
    assert proxied.proxy.counts["GET"] > 1


def test_request_to_absent_store_fails_after_its_retry_time(proxied: Store) -> None:
    """INV-6. The error names what did not answer."""
    assert proxied.proxy is not None
    storage = proxied.open(retry_timeout="1s")
    assert storage.list("s") == []  # its client is made: the time is that of the requests
    fault = proxied.proxy.arm("status", status=503)
    with pytest.raises(StoreError, match=r"s3://.*s/a can't be written.*503"):
        storage.put_new("s/a", b"x")
    assert fault.met > 1
    with pytest.raises(StoreError, match="can't be listed"):
        storage.list("s")


def test_client_below_does_not_retry_by_itself(proxied: Store) -> None:
    """INV-6: with no time for it, a failed request is repeated once, by the layer that knows what a repetition means."""
    assert proxied.proxy is not None
    storage = proxied.open(retry_timeout="0ms", request_timeout="60s")
    for verb, use in (("PUT", lambda: storage.put_new("s/a", b"x")), ("GET", lambda: storage.read("s/a"))):
        fault = proxied.proxy.arm("status", verb, status=503)
        with pytest.raises(StoreError, match="503"):
            use()
        assert fault.met == 2


def test_each_read_is_one_request_and_requests_are_counted(counted: Store) -> None:
    assert counted.proxy is not None
    storage = counted.open(request_timeout="60s")  # a time-out would be one more request
    storage.put_new("s/a", bytes(1000))
    storage.put_new("s/b", bytes(1000))
    counted.proxy.counts.clear()
    assert storage.read("s/a", 100, 200) == bytes(200)
    assert storage.exists("s/a")
    assert not storage.exists("s/c")
    assert counted.proxy.counts == {"GET": 3}
    storage.put_new("s/c", bytes(500))
    assert counted.proxy.counts == {"GET": 3, "PUT": 1}
    requests = storage.requests
    assert (requests["put"], requests["get"]) == (3, 3)
    assert (requests["bytes_out"], requests["bytes_in"]) == (2500, 201)
