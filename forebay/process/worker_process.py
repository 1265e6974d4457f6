"""State that Spark's Python workers keep between tasks, and its planning processes between queries."""

from __future__ import annotations

import gc
import sys

_modules = 0


def freeze_modules() -> None:
    """Exclude the loaded modules from all later garbage collections of this process. Called when a task or planning begins.

    Spark's worker collects all garbage after each task, before the next one begins (pyspark/daemon.py), and so do the processes
    that plan queries. Such a collection traverses the objects of hundreds of modules, which are never garbage, and takes more
    CPU than a small task.
    """
    global _modules
    if len(sys.modules) != _modules:  # otherwise only objects of tasks are new, and they may become garbage
        gc.freeze()
        _modules = len(sys.modules)
