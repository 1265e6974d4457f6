"""What the Python process that plans a streaming query imports, and when: Spark gives it ten seconds to connect."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from tests.support.spark import planners

#: what connects to Spark, in PySpark 4.2
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@functools.cache
def imported(*modules: str) -> set[str]:
    """Names of all modules that a fresh Python has after it imported ``modules``."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_planner_connects_before_it_imports_forebay() -> None:
    ours = ("forebay", "pyspark_forebay", "wal", "driver", "direct", "receiver", "deploy")
    assert [name for name in imported(RUNNER) if name.partition(".")[0] in ours] == []


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        (
            "pyspark_forebay",
            (
                "urllib3",
                "pyarrow.compute",
                "fsspec",
                "wal",
                "driver",
                "deploy",
                "rich",
                "click",
                "confluent_kafka",
                "asyncio",
            ),
        ),
        ("pyspark_forebay.kafka.stream", ("urllib3", "pyarrow.compute", "fsspec", "driver", "deploy", "rich", "click")),
        (
            "pyspark_forebay.intake.stream",
            ("s3fs", "aiohttp", "fsspec", "litestar", "driver", "deploy", "rich", "click"),
        ),
        (
            "pyspark_forebay.intake.batch",
            (
                "s3fs",
                "aiohttp",
                "fsspec",
                "litestar",
                "driver",
                "deploy",
                "rich",
                "click",
                "confluent_kafka",
                "tenacity",
                "asyncio",
            ),
        ),
    ],
)
def test_planner_imports_only_what_it_uses(module: str, unneeded: tuple[str, ...]) -> None:
    before = imported(RUNNER)
    assert sorted((imported(RUNNER, module) - before) & set(unneeded)) == []


@pytest.mark.parametrize(
    ("module", "most"),
    [
        ("pyspark_forebay.kafka.stream", 220),
        ("pyspark_forebay.intake.stream", 320),
        ("pyspark_forebay.sink.writers", 220),
    ],
)
def test_planner_imports_few_modules_after_it_has_connected(module: str, most: int) -> None:
    """PySpark alone has imported about 380 modules by then. On two busy cores a hundred modules take about 0.15 s."""
    found = imported(RUNNER, module) - imported(RUNNER)
    assert len(found) <= most, sorted(found)


def test_only_a_planner_that_did_not_start_is_restarted() -> None:
    errors = [
        RuntimeError(f"Python worker {planners.NOT_STARTED}."),
        RuntimeError("a fault"),
        RuntimeError("not reached"),
    ]

    def run() -> None:
        raise errors.pop(0)

    with pytest.raises(RuntimeError, match="a fault"):
        planners.started(run)
    assert len(errors) == 1


def test_planner_that_never_starts_is_an_error() -> None:
    runs = []

    def run() -> None:
        runs.append(1)
        raise RuntimeError(f"Python worker {planners.NOT_STARTED}.")

    with pytest.raises(RuntimeError, match=planners.NOT_STARTED):
        planners.started(run)
    assert len(runs) == planners.STARTS_MAX
