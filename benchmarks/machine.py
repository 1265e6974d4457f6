"""Facts about the machine, without which a figure has no meaning."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import confluent_kafka
import google_crc32c

_PACKAGES = ("forebay", "pyarrow", "confluent-kafka", "pyspark", "msgspec", "litestar", "uvicorn", "urllib3")


def facts(directory: Path) -> dict[str, str]:
    """Return the facts. ``directory``: folder of the benchmarks' files."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / 2**30:.0f} GiB",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "files": f"{directory} on {_filesystem(directory)}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "crc32c": str(google_crc32c.implementation),
        **{package: version(package) for package in _PACKAGES},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    """Return the type of the filesystem of ``directory``: that of the mount with the longest path above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(mount, kind) for mount, kind in mounts if directory.resolve().is_relative_to(mount)]
    return max(above, key=lambda found: len(found[0]))[1] if above else "an unknown filesystem"
