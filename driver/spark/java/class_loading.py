"""A Spark session that loads the Java classes of a driver and its batches. Its JVM writes them into an archive when it exits."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from driver.spark.counts import tier_counts
from driver.spark.java.jvm import session_options
from driver.spark.warming import Warming, queries
from forebay.settings.schema import NO_WAL
from wal.reading import ReadPlan


def main() -> None:
    """Start a session with the class path in the first argument, and end when its JVM has ended. The environment names the
    archive."""
    os.nice(19)
    options = {
        "spark.master": "local[2]", "spark.driver.memory": "512m", "spark.driver.extraClassPath": sys.argv[1],
        "spark.ui.port": "0", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    }  # fmt: skip
    builder = SparkSession.builder
    for key, value in session_options(options).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    gateway: Any = SparkContext._gateway
    plan, counts = ReadPlan(wal_url=NO_WAL), tier_counts(session.sparkContext)
    Warming().run(lambda: queries(session, plan, counts), rounds_max=1)
    session.stop()
    gateway.proc.stdin.close()  # the JVM ends, and writes the archive before
    sys.exit(gateway.proc.wait())
