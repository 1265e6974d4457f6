"""`forebay wal`: what is in the log, and what may be done with it."""
