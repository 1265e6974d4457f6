"""The driver ships Forebay to executors that lack it, and refuses in one sentence what does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError

import driver
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.spark import engine as spark_engine
from driver.spark import executors as spark_executors
from driver.spark.engine import SparkJobs
from driver.spark.executors import (
    _FIRST,
    PYARROW_MAJOR_MIN,
    ExecutorPython,
    _look,
    bring,
    misfit,
    refused,
    ship,
    strangers,
)
from forebay.model.errors import UsageError
from tests.support.run.pythons import bare_python, other_python

_ROOT = Path(driver.__file__).parents[1]


def test_a_misfit_is_named_with_its_host_and_the_next_step() -> None:
    good = ExecutorPython("w1", "0.1.0", "18.0.0", "driver.spark.engine", "")
    assert refused(good, "0.1.0") is None
    assert refused(good._replace(forebay=""), "0.1.0") is None, "it was shipped"
    for found, message in (
        (good._replace(forebay="0.0.9"), ("w1", "forebay 0.0.9", "0.1.0", 'ship = "auto"')),
        (good._replace(pyarrow="17.0.1"), ("w1", "pyarrow 17.0.1", f"at least {PYARROW_MAJOR_MIN}")),
        (good._replace(fault="No module named 'msgspec'"), ("w1", "msgspec", "install forebay 0.1.0")),
        (good._replace(module="jobs", fault="No module named 'wheel'"), ("w1", "jobs (No", "wheel", "spark.modules")),
    ):
        sentence = refused(found, "0.1.0")
        assert sentence is not None and "\n" not in sentence
        assert all(word in sentence for word in message), sentence


def test_the_minimum_pyarrow_is_the_one_in_pyproject() -> None:
    assert f'"pyarrow>={PYARROW_MAJOR_MIN}",' in (_ROOT / "pyproject.toml").read_text()


def test_the_check_of_an_executor_needs_no_forebay_there(tmp_path: Path) -> None:
    """And says what can't be imported, of a Python that has all but the project."""
    look = tmp_path / "look"
    look.write_bytes(cloudpickle.dumps(_look(("driver.batches.tasks.decoding", "wal"))))  # type: ignore[no-untyped-call]
    script = "import sys, pickle, pyspark.cloudpickle; print(*next(pickle.load(open(sys.argv[1], 'rb'))(())), sep='|')"
    command = [bare_python(tmp_path / "bare"), "-c", script, str(look)]
    # a job that was looked for in this process has left the way to it in the environment
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    host, _, *found = done.stdout.strip().split("|")
    assert host == os.uname().nodename
    assert found == [version("pyarrow"), "driver.batches.tasks.decoding", "No module named 'driver'"]


def test_different_names_of_hosts_are_reported() -> None:
    assert strangers({"w1", "w2"}, {"w2", "w3"}) == strangers(set(), {"w1"}) == strangers({"w1"}, ()) == ""
    message = strangers({"10.0.0.2", "10.0.0.1"}, {"w1"})
    assert "10.0.0.1, 10.0.0.2" in message and "on w1;" in message and "agent.host" in message


def test_another_python_is_recognised_by_pysparks_error() -> None:
    """Its worker refuses to begin, before anything of ours is asked."""
    versions = {"worker_version": "3.10", "driver_version": "3.12"}
    error = PySparkRuntimeError(errorClass="PYTHON_VERSION_MISMATCH", messageParameters=versions)
    message = misfit(f"Job aborted: Task 0 failed 4 times: pyspark.errors.exceptions.base.PySparkRuntimeError: {error}")
    assert message is not None and "executors run Python 3.10, and this driver 3.12" in message


def test_an_error_of_the_batch_is_no_misfit() -> None:
    assert misfit("Job aborted due to stage failure: Task 0 lost, ValueError: no") is None


def _shipped(folder: Path, *modules: str) -> str:
    """The zip that is sent."""
    sent: list[str] = []
    folder.mkdir(exist_ok=True)
    ship(cast(Any, SimpleNamespace(_temp_dir=str(folder), addPyFile=sent.append)), modules)
    return sent[0]


def test_the_shipped_zip_contains_all_that_tasks_import(tmp_path: Path) -> None:
    """With a Python that has everything except Forebay, and with a package, its data file and a module of the user."""
    mine = tmp_path / "mine"
    (mine / "tables").mkdir(parents=True)
    (mine / "tables" / "__init__.py").write_text("import pkgutil\nNAMES = pkgutil.get_data('tables', 'names.txt')\n")
    (mine / "tables" / "names.txt").write_text("ours")
    (mine / "tables" / "template.py").write_text("{{ not python }}")
    (mine / "job_of_mine.py").write_text("import tables\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(mine)
        archive = _shipped(tmp_path / "with", "job_of_mine", "tables")
    script = f"""
import importlib, sys
sys.path[:] = [{archive!r}, *sys.path]
for name in {[*_FIRST, "job_of_mine"]!r}:
    importlib.import_module(name)
import driver.batches.tasks.decoding, tables
print(tables.NAMES.decode(), driver.batches.tasks.decoding.__file__)
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [bare_python(tmp_path / "bare"), "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"ours {archive}/driver/")
    assert Path(_shipped(tmp_path / "without")).name != Path(archive).name, "another content, another name"


def test_a_module_that_cannot_be_shipped_is_refused_by_name(tmp_path: Path) -> None:
    for name, message in (
        ("nowhere_to_be_found", "no module 'nowhere_to_be_found'"),
        ("math", "does not consist of Python files"),
    ):
        with pytest.raises(UsageError, match=message):
            _shipped(tmp_path, name)
    assert not list(tmp_path.iterdir())


class _Jobs(SparkJobs):
    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        raise AssertionError("no batch is run here")


def test_a_restarted_executor_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that was looked at before: it may run another Python now. One that does not fit is looked at until it does."""
    there: set[str] = set()
    looked: list[Sequence[str]] = []
    refusal: list[UsageError] = []

    def look(_: object, hosts: Sequence[str], modules: Sequence[str]) -> None:
        assert tuple(modules) == ("jobs",)
        looked.append(hosts)
        if refusal:
            raise refusal.pop()

    monkeypatch.setattr(spark_engine, "executors", lambda _: frozenset(there))
    monkeypatch.setattr(spark_engine, "check", look)
    context = SimpleNamespace(applicationId="", master="spark://here:7077")
    jobs = _Jobs(cast(Any, SimpleNamespace(sparkContext=context)), modules=["jobs"], concurrent_jobs=1)
    for now in ({"w1:1", "w2:2"}, {"w1:1", "w2:2"}, {"w1:1"}, {"w1:1", "w2:3"}):
        there = now
        jobs._check_executors(cast(Any, None))
    assert looked == [["w1", "w2"], ["w2"]]
    there = {"w1:4", "w2:3"}
    refusal = [UsageError("another Python")]
    with pytest.raises(UsageError):
        jobs._check_executors(cast(Any, None))
    jobs._check_executors(cast(Any, None))
    assert looked[2:] == [["w1"], ["w1"]]


@pytest.fixture
def small_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling hundreds of modules takes seconds, and shows nothing of how often a zip is sent."""
    monkeypatch.setattr(spark_executors, "_PACKAGES", ("forebay_start",))


@pytest.mark.usefixtures("small_zip")
def test_a_zip_that_could_not_be_sent_is_made_and_sent_again(tmp_path: Path) -> None:
    """Not taken for what another engine has sent."""
    sent: list[str] = []

    def send(path: str) -> None:
        sent.append(path)
        if len(sent) == 1:
            raise OSError("no")

    context = cast(Any, SimpleNamespace(_temp_dir=str(tmp_path), addPyFile=send))
    with pytest.raises(OSError, match="no"):
        ship(context)
    ship(context)
    ship(context)
    assert len(sent) == 2 and Path(sent[1]).exists()


@pytest.mark.usefixtures("small_zip")
@pytest.mark.parametrize("master", ["spark://here:7077", "yarn", "local-cluster[1,1,512]"])
def test_a_session_without_an_engine_gets_the_code_once(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each RDD, and not if an engine has sent it, with modules of the user's own."""
    looked: list[Sequence[str]] = []
    monkeypatch.setattr(spark_executors, "executors", lambda _: frozenset({"w1:1"}))
    monkeypatch.setattr(spark_executors, "check", lambda _, hosts: looked.append(hosts))
    (tmp_path / "engine").mkdir()
    for folder, before in ((tmp_path, 0), (tmp_path / "engine", 1)):
        sent: list[str] = []
        context = cast(Any, SimpleNamespace(_temp_dir=str(folder), addPyFile=sent.append, master=master))
        if before:
            ship(context, ["wal.segments.frame"])
        bring(context)
        bring(context)
        assert len(sent) == 1
    assert looked == [["w1"]]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2, 3]"])
def test_tasks_in_forks_of_the_driver_are_shipped_nothing(master: str, tmp_path: Path) -> None:
    bring(cast(Any, SimpleNamespace(_temp_dir=str(tmp_path), addPyFile=None, master=master)))
    assert not list(tmp_path.iterdir())


#: the driver's side: a cluster of one worker in processes of its own, whose executors run the Python that is named
_PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from driver.spark.blocks import executors, hosts_of
from driver.spark.executors import check, ship
from forebay.model.errors import UsageError

session = (
    SparkSession.builder.master("local-cluster[1,1,512]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m").config("spark.executorEnv.PYTHONPATH", "")
    .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"]).getOrCreate()
)
context = session.sparkContext
context.setLogLevel("OFF")

def attempt():
    try:
        check(context, sorted(hosts_of(executors(context))) or ["any"], ["jobs"])
        print("RESULT fits")
    except UsageError as error:
        print("RESULT", error)

attempt()
path = list(sys.path)
ship(context, ["jobs"])
ship(context, ["jobs"])  # of another engine
assert sys.path == path
attempt()

def number(_):
    import driver.batches.tasks.reading
    yield driver.batches.tasks.reading.__file__

def parent(_):
    import os
    yield os.getppid()  # PySpark's daemon, which is the executor's child

print("RESULT", context.parallelize([1], 1).mapPartitions(number).collect()[0])

before = executors(context)
daemon = context.parallelize([1], 1).mapPartitions(parent).collect()[0]
executor = int(open(f"/proc/{daemon}/stat").read().rpartition(")")[2].split()[1])
os.kill(executor, 9)
while not executors(context) - before:
    context.parallelize([1], 1).count()  # until one is there again
print("RESULT", sorted(hosts_of(executors(context)) | hosts_of(before)) == sorted(hosts_of(before)))

context.pythonExec = "python3.x"
attempt()
context.pythonExec, context.pythonVer = sys.argv[1], "%d.%d" % sys.version_info[:2]
attempt()
"""


@pytest.mark.spark
@pytest.mark.long
def test_a_python_without_forebay_is_shipped_it_and_a_misfit_is_refused(tmp_path: Path) -> None:
    """On executors in processes of their own, by a Python that has all other packages, one that is not there, and one of
    another version. An executor that is killed comes back as another one on the same host."""
    bare = bare_python(tmp_path / "bare")
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "jobs.py").write_text("")
    other, its_version = other_python(tmp_path / "other")
    environment = {**os.environ, "PYSPARK_PYTHON": bare, "PYTHONPATH": f"{_ROOT}:{tmp_path / 'mine'}"}
    done = subprocess.run(
        [sys.executable, "program.py", other],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    results = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert done.returncode == 0, done.stderr[-3000:]
    assert "can't import forebay (No module named 'driver')" in results[0]
    assert results[1] == "fits"
    assert f"forebay-{version('forebay')}-" in results[2] and ".zip/driver/" in results[2]
    assert results[3] == "True"
    assert "can't run python3.x" in results[4]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"executors run Python {its_version}, and this driver {here}" in results[5]
