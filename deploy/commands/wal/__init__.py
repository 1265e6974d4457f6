"""``forebay wal``: inspect, verify, follow, repair and export the write-ahead log."""
