"""The contract of every store, tested over each kind, with a real server if the store has one."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from random import Random

import pytest

from forebay.model.errors import StoreError
from forebay.settings.stores import STORE_KINDS, scheme_of
from tests.support.stores.contract import Store
from wal.storage import DatesObjects, KeepsFolders, Storage, existing, object_pages
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


def test_listing_in_several_pages_has_each_name_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_pages, "NAMES_MAX", 2)
    names = ["s/a/1", "s/a/2", "s/b", "s/c.d_e-f/1", "s/d", "s/e"]
    for name in [*names, "s2/x", "r"]:
        storage.put_new(name, b"x")
    assert storage.list("s") == names
    assert storage.list("s/a") == names[:2]
    assert storage.list("") == ["r", *names, "s2/x"]
    assert storage.list("s/b") == storage.list("none") == []


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


def test_those_of_several_names_that_exist_are_found(storage: Storage) -> None:
    storage.put_new("s/a", b"x")
    storage.put_new("s/b", b"")
    assert existing(storage, ["s/c", "s/b", "nowhere/a", "s/a"]) == ["s/b", "s/a"]
    assert existing(storage, ["s/c", "nowhere/a"]) == existing(storage, []) == []


def test_list_gives_every_file_below_a_folder_sorted(storage: Storage) -> None:
    for path in ("s/b/2", "s/b/1", "s/a", "sx/a", "t"):
        storage.put_new(path, b"x")
    assert storage.list("s") == ["s/a", "s/b/1", "s/b/2"]
    assert storage.list("s/b") == ["s/b/1", "s/b/2"]
    assert storage.list("") == ["s/a", "s/b/1", "s/b/2", "sx/a", "t"]
    assert storage.list("nowhere/at/all") == []
    assert storage.list("t") == []


def test_delete_may_be_repeated(prompt: Store) -> None:
    """INV-8: a delete is repeated after a crash."""
    storage = prompt.open()
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
    store.crash()
    for again in (storage, store.open()):
        assert again.read("lease") == b"newest"
        assert [again.read(f"s/{n}") for n in range(20)] == [b"%d" % n * 1000 for n in range(20)]


def test_an_answered_deletion_holds_after_the_server_was_killed(prompt: Store) -> None:
    storage = prompt.open()
    storage.put_new("s/a", b"x")
    storage.delete("s/a")
    prompt.crash()
    for again in (storage, prompt.open()):
        assert not again.exists("s/a")


def test_a_writer_killed_in_the_middle_leaves_whole_objects_only(outliving: Store) -> None:
    """No torn write is ever seen, and nothing that was answered is missing."""
    store = outliving
    for lines in (1, 3):
        client = subprocess.Popen(
            [sys.executable, "-c", _WRITING_CLIENT, store.url, json.dumps(store.options)], stdout=subprocess.PIPE
        )
        assert client.stdout is not None
        acknowledged = [int(client.stdout.readline()) for _ in range(lines)]
        client.kill()
        acknowledged += [int(line) for line in client.stdout.read().split()]
        client.wait()
        client.stdout.close()
        storage = store.open()
        found = {int(path.rsplit("/", 1)[1]) for path in storage.list("s")}
        assert set(acknowledged) <= found
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
