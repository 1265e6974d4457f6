"""What commands and services import: a module that a process does not use costs CPU at each of its starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SERVER = ("litestar", "uvicorn", "jinja2")
_SPARK = ("pyspark", "py4j", "pandas")
_STORES = ("s3fs", "hdfs_native", "aiohttp")


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("deploy.main", ("deploy.commands", "msgspec", "rich", "urllib3", "pyarrow")),
        (
            "deploy.commands.inspection.status",
            (
                *_SERVER,
                *_SPARK,
                *_STORES,
                "pyarrow",
                "numpy",
                "fsspec",
                "rich",
                "confluent_kafka",
                "tenacity",
                "urllib3",
            ),
        ),
        ("forebay.client", ("urllib3", "asyncio")),
        ("receiver.main", (*_SERVER, *_SPARK, *_STORES, "rich", "opentelemetry")),
        ("executor_agent.main", (*_SPARK, *_STORES, "rich", "confluent_kafka", "opentelemetry", "cryptography")),
        ("driver.main", (*_SPARK, *_STORES, "rich", "opentelemetry")),
    ],
)
def test_process_imports_only_what_it_uses(module: str, unneeded: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(set(done.stdout.split()) & set(unneeded)) == []
