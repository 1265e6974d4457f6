"""The refusal of sessions of Spark Connect, which have no SparkContext. Imports no PySpark."""

from __future__ import annotations

from typing import TypeVar

from forebay.model.errors import UsageError

Session = TypeVar("Session")

_CONNECT = "pyspark.sql.connect."


def classic(session: Session) -> Session:
    """Return ``session``, a SparkSession or None. Raises UsageError for a session of Spark Connect."""
    if any(kind.__module__.startswith(_CONNECT) for kind in type(session).__mro__):
        raise UsageError(
            "this session belongs to Spark Connect: it has no SparkContext, which places tasks on hosts, counts what they read "
            "and cancels them. Use a session of this process, as from SparkSession.builder.master(…), without SPARK_REMOTE in "
            'the environment. Queries over Spark Connect can read the intake: format("forebay") with the option tracker'
        )
    return session
