"""The driver: tracker, journal, batches. ``IngestContext`` is what programs use; the rest is reached by module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driver.context import IngestContext

__all__ = ["IngestContext"]


def __getattr__(name: str) -> Any:
    # Lazy: a Spark task imports driver.spark_tasks, and must not load the driver's decisions with it.
    if name == "IngestContext":
        from driver.context import IngestContext

        return IngestContext
    raise AttributeError(name)
