"""The example's custom sources with real receivers, driver and agent, without a broker, killed repeatedly."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.support.kafka.flow import Truth
from tests.support.processes import witness
from tests.support.processes.cluster import Cluster
from tests.support.run.ports import free_port
from tests.support.state.columns import column_values

_SOURCES = "deploy.examples.custom_sources.sources"
_KILLS = 3


def cluster_of(folder: Path, source: str, options: dict[str, object], count: int = 1) -> Cluster:
    own = {"source": f"{_SOURCES}:{source}", "source_options": options, "count": count}
    cluster = Cluster(folder, {}, [], receivers=0, start=False, receiver=own, kafka={"discovery_interval": "200ms"})
    for ordinal in range(count):
        cluster.add_receiver(f"stream-r{ordinal}")
    return cluster


class Growing:
    """Files that lines are appended to from a thread, sometimes in two halves; ``truth`` is what they hold."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        folder.mkdir()
        self.truth = Truth()
        self._paths = [folder / name for name in names]
        self._numbers = dict.fromkeys(self._paths, 0)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Growing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, path: Path) -> None:
        with self._lock:
            self._numbers[path] = 0

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            with self._lock:
                paths = list(self._numbers)
            for path in paths:
                self._append(path, 10)

    def _append(self, path: Path, count: int) -> None:
        with open(path, "ab") as file:
            for _ in range(count):
                line = b"%s %d" % (path.name.encode(), self._numbers[path])
                self._numbers[path] += 1
                begin = file.tell()
                file.write(line[:3])
                file.flush()  # a reader may see half a line, which is none yet
                file.write(line[3:] + b"\n")
                self.truth.add(path.name, 0, begin + len(line), None, line)


def test_a_source_that_can_be_read_again_loses_and_repeats_nothing_when_its_receivers_are_killed(
    tmp_path: Path,
) -> None:
    """INV-2, INV-3: receivers and driver killed in turn, a file that appears meanwhile; batches hold what the files hold."""
    files = tmp_path / "files"
    with (
        Growing(files, ["a.log", "b.log", "c.log"]) as growing,
        cluster_of(tmp_path / "run", "Tail", {"folder": str(files)}, count=2) as cluster,
    ):
        cluster.start_all()
        done = 0
        for number in range(_KILLS):
            cluster.wait(
                lambda done=done: (status := cluster.status()) and status.records_completed > done, "more records"
            )
            victim = ("stream-r0", "driver", "stream-r1")[number]
            cluster.kill9(victim)
            cluster.restart(victim)
            if number == 0:
                growing.add(files / "appeared-later.log")
            status = cluster.wait(cluster.status, "the driver")
            done = status.records_completed
        cluster.wait(lambda: ("appeared-later.log", 0) in cluster.owners(), "the new file to have an owner")
        owners = cluster.wait(lambda: found if len(found := cluster.owners()) == 4 else None, "an owner of each file")
        growing.stop()
        cluster.await_completed(growing.truth.ends())
        assert cluster.command("validate").returncode == 0
        cluster.drain()
        cluster.check_audit()
        assert set(owners.values()) <= {"stream-r0", "stream-r1"}
        witness.assert_same_records(cluster.records_seen(), growing.truth.table())


@pytest.mark.spark
def test_agents_run_receivers_of_a_custom_source_where_the_driver_places_them_and_spark_reads_their_blocks(
    tmp_path: Path,
) -> None:
    """INV-2, INV-3: an id says the ordinal, wherever its receiver runs; one is killed, and its files go on under it."""
    files = tmp_path / "files"
    own = {"source": f"{_SOURCES}:Tail", "source_options": {"folder": str(files)}, "mode": "managed", "count": 2}
    with (
        Growing(files, ["a.log", "b.log"]) as growing,
        Cluster(
            tmp_path / "run", {}, [], receivers=0, start=False, engine="spark", receiver={**own, "hosts_wait": "0s"},
            kafka={"discovery_interval": "200ms"}, driver={"placing_interval": "200ms"},
        ) as cluster,
    ):  # fmt: skip
        cluster.start("driver")
        cluster.start("agent")

        def owned() -> dict[str, int]:
            """Process of each receiver, once each owns a file."""
            status = cluster.status()
            found = {r.receiver_id: r.pid for r in status.managed if r.state == "active"} if status is not None else {}
            return found if set(cluster.owners().values()) == set(found) == {"stream-r0", "stream-r1"} else {}

        first = cluster.wait(owned, "a file for each receiver")
        cluster.wait(lambda: (status := cluster.status()) and status.records_completed > 0, "a batch")
        os.kill(first["stream-r1"], signal.SIGKILL)
        again = cluster.wait(
            lambda: found if (found := owned()) and found["stream-r1"] != first["stream-r1"] else None,
            "the killed one anew",
        )
        assert again["stream-r0"] == first["stream-r0"]
        growing.stop()
        cluster.await_completed(growing.truth.ends())
        cluster.drain()
        cluster.check_audit()
        witness.assert_same_records(cluster.records_seen(), growing.truth.table())


def test_new_file_under_the_same_name_is_a_new_incarnation(tmp_path: Path) -> None:
    """INV-5: its lines are not taken for those of the file that was moved away, though its offsets begin anew."""
    files = tmp_path / "files"
    files.mkdir()
    path, truth = files / "a.log", Truth()
    with cluster_of(tmp_path / "run", "Tail", {"folder": str(files)}) as cluster:
        cluster.write_settings(kafka={"on_gap": "record"})
        cluster.start_all()
        for incarnation, count in ((1, 100), (2, 20)):
            lines = [b"%d of life %d" % (n, incarnation) for n in range(count)]
            content, offset = b"".join(line + b"\n" for line in lines), -1
            for line in lines:
                offset += len(line) + 1
                truth.add("a.log", 0, offset, None, line)
            (files / "next").write_bytes(content)
            if path.exists():
                path.rename(files / "a.log.1")
            (files / "next").rename(path)
            wanted = (incarnation, len(content))
            cluster.wait(lambda wanted=wanted: completed(cluster) == wanted, f"all of life {incarnation}")
        cluster.drain()
        cluster.check_audit()
        seen = column_values(cluster.records_seen(), "value")
        assert sorted(seen) == sorted(column_values(truth.table(), "value"))


def test_a_source_that_cant_be_read_again_repeats_nothing_and_delivers_what_was_accepted(tmp_path: Path) -> None:
    """INV-2, INV-3: only the unaccepted records of a killed receiver are lost; offsets stay dense."""
    port = free_port()
    with cluster_of(tmp_path, "Lines", {"port": port}) as cluster:
        cluster.start_all()
        sent = 0
        for number in range(_KILLS):
            with connected(cluster, port) as connection:
                for _ in range(20):
                    connection.sendall(b"".join(b"%d\n" % n for n in range(sent, sent + 50)))
                    sent += 50
                    threading.Event().wait(0.005)
                if number:
                    cluster.kill9("stream-r0")  # while it still receives lines
                    cluster.restart("stream-r0")
                else:
                    cluster.wait(lambda: accepted(cluster) == 1000, "all of the first ones, which nothing disturbed")
        with connected(cluster, port) as connection:
            before = accepted(cluster)
            connection.sendall(b"".join(b"%d\n" % n for n in range(sent, sent + 100)))
            cluster.wait(lambda: accepted(cluster) >= before + 100, "what was sent last")
        sent += 100
        cluster.await_completed({("lines", 0): accepted(cluster)})
        position = accepted(cluster)
        cluster.drain()
        cluster.check_audit()
        seen = cluster.records_seen()
        assert sorted(column_values(seen, "offset")) == list(range(position)), "each accepted offset once, no gap"
        values = [int(value) for value in column_values(seen.sort_by("offset"), "value")]
        assert len(set(values)) == len(values), "no line came twice"
        assert values == sorted(values), "and in the order in which they were sent"
        assert values[:1000] == list(range(1000)) and values[-100:] == list(range(sent - 100, sent))
        assert pc.count_distinct(seen.column("topic")).as_py() == 1


def completed(cluster: Cluster) -> tuple[int, int]:
    """(incarnation, completed position) of the file."""
    found = cluster.partition("a.log", 0)
    return (found.incarnation, found.completed) if found is not None else (0, -1)


def accepted(cluster: Cluster) -> int:
    return cluster.wait(lambda: cluster.partition("lines", 0), "the partition in status").position


def connected(cluster: Cluster, port: int) -> socket.socket:
    """A connection to the receiver, once it listens."""

    def attempt() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            return None

    return cluster.wait(attempt, "the receiver to listen")
