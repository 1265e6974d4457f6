"""Faulty machines for real processes: a library that is loaded into them, the log of their writes, and limits of the kernel."""
