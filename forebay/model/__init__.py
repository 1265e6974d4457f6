"""The values that all parts share: offsets, ranges, blocks, records in columns, units; and the class hierarchy of errors."""
