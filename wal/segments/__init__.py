"""Segments, the files of the log: the bytes of a frame, names of files, writing, scanning, following, barriers."""
