"""The journal's log: opening, reading and writing of its segments and snapshots."""
