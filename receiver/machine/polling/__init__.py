"""What a poll returned: records, gaps between offsets, faults of a partition."""
