"""A job that stores the content of each batch, and a check against the produced records, independent of the product's audit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.kafka.flow import SCHEMA

#: written into a cluster's folder as jobs.py. Each run of a batch writes one Arrow file named by the batch's id; a rerun
#: whose rows differ from those of an earlier run leaves both (INV-3). ``runs.txt`` gets a line for each run: replay, id, key,
#: rerun. While the file ``hold`` is there, a job that has
#: read its rows waits; ``fail`` lets it fail.
JOB = """\
import json
import time
from pathlib import Path

import pyarrow as pa

HERE = Path(__file__).resolve().parent
SEEN = HERE / "seen"


def local(batch):
    keep(batch, pa.Table.from_batches(map(chosen, batch.read()), SCHEMA))


def by_dataframe(batch):
    keep(batch, batch.df.select(*SCHEMA.names).toArrow())


def by_arrow(batch):
    keep(batch, pa.Table.from_batches(batch.arrow.map(chosen).collect(), SCHEMA))


SCHEMA = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary()),
])


def chosen(rows):
    return pa.RecordBatch.from_pydict({name: rows.column(name).cast(SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)


def keep(batch, rows):
    lives = json.dumps([[r.topic, r.partition, r.incarnation, r.from_offset, r.until_offset] for r in batch.ranges])
    rows = rows.select(SCHEMA.names).cast(SCHEMA).combine_chunks().replace_schema_metadata({"lives": lives})
    (SEEN / f"{batch.id}.begun").touch()
    with (HERE / "runs.txt").open("a") as runs:
        runs.write(f"{batch.replay} {batch.id} {batch.key} {batch.rerun}\\n")
    while (HERE / "hold").exists():
        (SEEN / f"{batch.id}.held").touch()
        time.sleep(0.02)
    if (HERE / "fail").exists():
        raise RuntimeError("failing on request")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    data = sink.getvalue().to_pybytes()
    path = SEEN / f"{batch.id}.arrow"
    if path.exists() and path.read_bytes() != data:
        path.rename(SEEN / f"{batch.id}.before")
        (SEEN / f"{batch.id}.differs").touch()
    temporary = SEEN / f"{batch.id}.tmp"
    temporary.write_bytes(data)
    temporary.replace(path)
"""


def seen_by(folder: Path, completed: Iterable[int]) -> pa.Table:
    """Return the rows of all ``completed`` batches as the job saw them. Each must have run, and each rerun must be the same."""
    different = sorted(path.stem for path in folder.glob("*.differs"))
    assert not different, (
        f"batches {different} had other rows when they ran again (INV-3); both versions are in {folder}"
    )
    tables = [SCHEMA.empty_table()]
    for batch_id in completed:
        path = folder / f"{batch_id}.arrow"
        assert path.exists(), f"batch {batch_id} was completed, but the job never saw it"
        tables.append(read_seen(path).replace_schema_metadata(None))
    return pa.concat_tables(tables)


def read_seen(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def incarnations_seen(path: Path) -> list[tuple[str, int, int, int, int]]:
    """Return (topic, partition, incarnation, from, until) of the batch's ranges."""
    metadata = read_seen(path).schema.metadata
    return [tuple(item) for item in json.loads(metadata[b"lives"])]


def assert_same_records(seen: pa.Table, truth: pa.Table) -> None:
    """Assert that ``seen`` has every record of ``truth`` exactly once, with its key and value, and nothing else."""
    order: Any = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending"), ("value", "ascending")]
    seen, truth = seen.sort_by(order), truth.sort_by(order)
    if seen.equals(truth):
        return
    places_seen = list(zip(*(seen.column(name).to_pylist() for name in SCHEMA.names[:3]), strict=True))
    places_true = list(zip(*(truth.column(name).to_pylist() for name in SCHEMA.names[:3]), strict=True))
    missing = sorted(set(places_true) - set(places_seen))
    strange = sorted(set(places_seen) - set(places_true))
    twice = sorted({a for a, b in itertools.pairwise(places_seen) if a == b})
    problems = [
        f"{len(places)} {name}: {places[:5]} … {places[-1]}"
        for name, places in (("in no completed batch", missing), ("never produced", strange), ("more than once", twice))
        if places
    ]
    raise AssertionError("; ".join(problems) or "keys or values differ from what was produced")
