"""The job of a run, written as jobs.py into its folder: it writes the rows of each run of each batch into a file of its own."""

JOB = """\
import json
import os
import socket
import time
from pathlib import Path

OUT = Path(__file__).resolve().parent / "out"


def by_reading(batch):
    keep(batch, batch.read)


def by_tasks(batch):
    \"""Every second batch as a DataFrame; the others as an RDD, whose tasks name their hosts.\"""
    hosts = set()

    def dataframe():
        return batch.df.select("topic", "partition", "offset", "value").toArrow().to_batches()

    def rdd():
        for host, part in batch.arrow.map(with_host).collect():
            hosts.add(host)
            yield part

    keep(batch, rdd if batch.id % 2 else dataframe, hosts)


def with_host(part):
    return socket.gethostname(), part


def keep(batch, read, hosts=()):
    began = time.monotonic()
    rows = [
        f"{topic}\\t{partition}\\t{offset}\\t{value.decode()}\\n"
        for part in read()
        for topic, partition, offset, value in zip(
            *(part.column(name).to_pylist() for name in ("topic", "partition", "offset", "value"))
        )
    ]
    driver = f"{socket.gethostname()} {os.getpid()}"
    head = {"id": batch.id, "rerun": batch.rerun, "driver": driver, "epoch": batch.epoch}
    head |= {"began": began, "ended": time.monotonic(), "task_hosts": sorted(hosts)}
    path = OUT / f"{batch.id}-{os.getpid()}-{time.monotonic_ns()}"
    path.write_text(json.dumps(head) + "\\n" + "".join(rows))
    path.rename(path.with_suffix(".run"))
"""
