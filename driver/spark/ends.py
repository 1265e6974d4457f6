"""Whether a Spark context has ended, and why a new one did not start."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark import SparkContext

#: in the error of every call of a context that was stopped
_STOPPED = "stopped SparkContext"


def why_lost(context: SparkContext) -> str:
    """Return the reason why ``context`` can't run jobs any more; "" if it can."""
    try:
        stopped = context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError) as error:
        return f"Spark's JVM has ended: {error}"
    return "the Spark context was stopped" if stopped else ""


def is_turned_away(error: Exception) -> bool:
    """Return whether Spark itself has stopped a new context, as it does when no master of the cluster answers for a minute.

    ``error``: of the start. The settings may be right, so a supervisor is to start the process again.
    """
    return _STOPPED in str(error)


def forget_stopped_context() -> None:
    """Let PySpark, which keeps one context for this process, not return a stopped one again."""
    context = SparkContext._active_spark_context
    if context is not None and why_lost(context):
        context.stop()
