"""How a start of Spark fails: what a supervisor does next depends on it. No JVM is started."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from driver.spark import ends
from driver.spark import engine as spark_engine
from driver.spark.engine import SparkJobs
from forebay.model.errors import EngineLostError, StoreError, UnreachableError, UsageError

_TURNED_AWAY = (
    "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
    ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
)


class Jobs(SparkJobs):
    def _batch(self, work: Any, counts: Any) -> Any:
        raise AssertionError("no batch runs")


class Context:
    """A context of Spark, as far as its end is concerned."""

    uiWebUrl = ""  # noqa: N815 - Spark's name
    master = "spark://master:7077"

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


class Builder:
    """Makes no session: ``error`` is raised."""

    def __init__(self, error: Exception) -> None:
        self.builder = self
        self._error = error

    def config(self, key: str, value: str) -> Builder:
        return self

    def getOrCreate(self) -> Any:  # noqa: N802 - Spark's name
        raise self._error


def start(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(spark_engine, "start_jvm", lambda *_: None)
    monkeypatch.setattr(spark_engine, "check_java", lambda: None)
    monkeypatch.setattr(spark_engine, "SparkSession", Builder(error))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    Jobs(options={"spark.master": Context.master}, concurrent_jobs=1).start()


def test_cluster_that_accepts_no_application_is_out_of_reach_and_no_wrong_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A supervisor starts the driver again, and the next start makes another context than the stopped one."""
    context = Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(ends, "why_lost", lambda _: "the Spark context was stopped")
    with pytest.raises(UnreachableError, match=r"spark://master:7077.*did not accept the application") as raised:
        start(monkeypatch, RuntimeError(_TURNED_AWAY))
    assert raised.value.exit_code == 3
    assert context.stopped


def test_context_that_runs_is_not_stopped_by_the_failure_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(ends, "why_lost", lambda _: "")
    with pytest.raises(UnreachableError):
        start(monkeypatch, RuntimeError(_TURNED_AWAY))
    assert not context.stopped


def test_option_that_spark_refuses_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Executor memory 100 must be at least"):
        start(monkeypatch, ValueError("IllegalArgumentException: Executor memory 100 must be at least 471859200"))


@pytest.mark.parametrize("lost", ["the Spark context was stopped", ""])
def test_spark_that_ends_while_the_code_is_sent_is_lost(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The driver ends with one sentence. Any other error there is raised as it is."""

    class Session:
        sparkContext = Context()  # noqa: N815 - Spark's name

    def ship(*_: Any) -> None:
        raise RuntimeError(_TURNED_AWAY)

    monkeypatch.setattr(spark_engine, "ship", ship)
    monkeypatch.setattr(spark_engine, "why_lost", lambda _: lost)
    jobs = Jobs(concurrent_jobs=1)
    jobs._session = Session()  # type: ignore[assignment]
    with pytest.raises(
        EngineLostError if lost else RuntimeError, match=f"^{lost} while it started$" if lost else "stopped"
    ):
        jobs.start()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}),
    ],
    ids=["no memory for a process", "gateway ended"],
)
def test_lack_of_memory_at_the_start_is_tried_again_by_a_supervisor(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((EngineLostError, StoreError), match="Spark can't start") as caught:
        start(monkeypatch, error)
    assert caught.value.exit_code == 1


def test_missing_spark_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Spark can't start: No such file or directory; correct SPARK_HOME") as caught:
        start(monkeypatch, FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert caught.value.exit_code == 2
