"""Decisions on values alone, about what a scan of block segments found: which segments to delete, and what to do with damage."""
