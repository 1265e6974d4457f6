"""Stores of pending blocks: in the WAL (``wal_store``), or on hosts' disks alone (``replica_store``)."""
