"""DeltaOutput on a real S3 server: what a local folder does by links and renames, conditional puts do there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from driver.batches.job.work import Written
from driver.outputs import DeltaOutput
from forebay.model.errors import StoreError
from forebay.model.identifiers import numbered
from tests.support.processes.output_process import OutputProcess, Turn, batch_of, expected, rows_of
from tests.support.stores import s3
from tests.support.stores.contract import require_s3
from tests.support.stores.fault_proxy import FaultProxy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    require_s3()
    with s3.s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, where an executor and a driver find them."""
    for name, value in s3.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def options(url: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}


def table(server: s3.S3Server, name: str) -> DeltaTable:
    return DeltaTable(f"s3://{s3.BUCKET}/{name}", storage_options=options(server.url))


def rows_in(server: s3.S3Server, name: str) -> list[tuple[int, int, int]]:
    columns = table(server, name).to_pyarrow_table().to_pydict()
    return sorted(zip(columns["number"], columns["place"], columns["replay"], strict=True))


def test_a_kill_before_the_commit_and_reruns_leave_each_row_once(
    server: s3.S3Server, output_process: OutputProcess, tmp_path: Path
) -> None:
    """INV-3: the first kill leaves rows without a commit, the second a commit whose batch is not completed."""
    arguments = (f"s3://{s3.BUCKET}/killed",)
    given = {"batch_column": "batch", "storage_options": options(server.url)}
    turns = [Turn(1), Turn(2)]

    def run(epoch: int, turns: list[Turn], armed: str = "") -> int:
        hits = tmp_path / f"hits-{epoch}"
        hits.mkdir()
        return output_process.run("delta", arguments, given, tmp_path / "completed", turns, epoch, armed, hits)

    assert run(1, turns, "output.before-commit=kill@2") == -signal.SIGKILL
    assert rows_in(server, "killed") == expected(turns[:1])
    assert run(2, turns, "output.after-commit=kill") == -signal.SIGKILL
    assert rows_in(server, "killed") == expected(turns)
    assert run(3, turns) == 0
    again = DeltaOutput(*arguments, storage_options=options(server.url)).write(
        batch_of(Turn(2), numbered(1, 3)), rows_of(Turn(2))
    )
    assert again.rows == 0 and "is written already" in again.skipped
    assert rows_in(server, "killed") == expected(turns)
    assert run(4, [*turns, Turn(1, replay=1)]) == 0
    assert rows_in(server, "killed") == expected([Turn(1, replay=1), Turn(2)])


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")], ids=["two outputs", "two drivers of one"])
def test_if_two_drivers_create_the_table_each_version_is_committed_by_one(
    names: tuple[str, str], server: s3.S3Server
) -> None:
    """INV-4: both see no table, both make it, both commit behind it."""
    path = f"raced-{'-'.join(names)}"
    both = threading.Barrier(2, timeout=30)

    def rows() -> Iterator[pa.RecordBatch]:
        first, *others = rows_of(Turn(1))
        both.wait()  # each has looked for the table
        yield first
        yield from others
        both.wait()  # each has made it, or seen it made

    def write(place: int) -> Written | StoreError:
        output = DeltaOutput(f"s3://{s3.BUCKET}/{path}", name=names[place], storage_options=options(server.url))
        try:
            return output.write(batch_of(Turn(1), numbered(1, 1 + place)), rows())
        except StoreError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(write, range(2)))
    written = [outcome for outcome in outcomes if isinstance(outcome, Written)]
    assert [one.rows for one in written] == [60] * len(set(names)), outcomes
    assert rows_in(server, path) == sorted(expected([Turn(1)]) * len(written))
    commits = table(server, path).history()
    assert [commit["version"] for commit in commits] == list(reversed(range(1 + len(written))))
    makers = [commit for commit in commits if commit["operation"] == "CREATE TABLE"]
    assert [maker["version"] for maker in makers] == [0]


def test_a_commit_whose_answer_was_lost_is_not_written_twice(server: s3.S3Server) -> None:
    """INV-3: whether delta-rs finds its own commit, or the retry finds the identifiers."""
    with FaultProxy(server.port) as proxy:
        output = DeltaOutput(f"s3://{s3.BUCKET}/lost", storage_options=options(proxy.url))
        assert output.write(batch_of(Turn(1)), rows_of(Turn(1))).rows == 60
        fault = proxy.arm("reset-after", "PUT", times=1, part_of_path="_delta_log")
        try:
            output.write(batch_of(Turn(2)), rows_of(Turn(2)))
        except StoreError:
            output.write(batch_of(Turn(2)), rows_of(Turn(2)))
        assert fault.met == 1
    assert rows_in(server, "lost") == expected([Turn(1), Turn(2)])


def test_what_the_store_refuses_is_one_line_without_the_secret(
    server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    output: Any = DeltaOutput(f"s3://{s3.BUCKET}/refused", storage_options=options(server.url))
    with pytest.raises(StoreError, match="output 'delta'") as refused:
        output.write(batch_of(Turn(1)), rows_of(Turn(1)))
    assert "\n" not in str(refused.value) and "another-secret" not in str(refused.value)
