"""``pyspark.daemon`` with workers that find Forebay's own packages first; named by ``spark.python.daemon.module``."""

from __future__ import annotations

from forebay_start import find_first

if __name__ == "__main__":
    find_first()
    from pyspark.daemon import manager

    manager()
