"""What Spark's Python workers keep from one task to the next."""

from __future__ import annotations

import gc
import sys

_modules = 0


def freeze_modules() -> None:
    """Called where a task begins: what is loaded by now is kept out of all later garbage collections of this process.

    Spark's worker collects all garbage after each task, before it may take the next one (pyspark/daemon.py). That walks what
    hundreds of modules are made of, none of which ever is garbage: it takes more CPU than a small task itself.
    """
    global _modules
    if len(sys.modules) != _modules:  # else nothing is new but what tasks made, some of which may become garbage
        gc.freeze()
        _modules = len(sys.modules)
