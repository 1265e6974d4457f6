"""Custom sources: the classes that a user's source derives from (docs/SOURCES.md)."""

from forebay.sources.receiving import OffsetGone, Record, Records, ReliableSource, RetryLater, UnreliableSource

__all__ = ["OffsetGone", "Record", "Records", "ReliableSource", "RetryLater", "UnreliableSource"]
