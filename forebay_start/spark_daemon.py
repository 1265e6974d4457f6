"""Spark's own ``pyspark.daemon``, whose workers find Forebay's packages first (``spark.python.daemon.module``)."""

from __future__ import annotations

from forebay_start import find_first

if __name__ == "__main__":
    find_first()
    from pyspark.daemon import manager

    manager()
