"""Values of the domain and their units: offsets, ranges, blocks, records in columns; the tree of errors."""
