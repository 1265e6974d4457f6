"""The driver: journal, tracker, batches. User programs import the names listed here; everything else is imported from its
module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driver.batches.job.batch import Batch
    from driver.batches.job.keyed_state import KeyedState
    from driver.batches.tasks.reading import KafkaRecord
    from driver.context import IngestContext

__all__ = ["Batch", "IngestContext", "KafkaRecord", "KeyedState"]

_MODULES = {
    "Batch": "driver.batches.job.batch",
    "IngestContext": "driver.context",
    "KafkaRecord": "driver.batches.tasks.reading",
    "KeyedState": "driver.batches.job.keyed_state",
}


def __getattr__(name: str) -> Any:
    # Lazy: a Spark task imports driver.batches.tasks.reading, and must not load the driver's decisions with it.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(name)
