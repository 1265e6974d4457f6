"""Kinds of sources, and the base classes of custom sources (docs/SOURCES.md)."""

from forebay.sources.receiving import OffsetGone, Record, Records, ReliableSource, RetryLater, UnreliableSource

__all__ = ["OffsetGone", "Record", "Records", "ReliableSource", "RetryLater", "UnreliableSource"]
