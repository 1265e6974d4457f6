"""The notebook of the quickstart runs in a real kernel, against a real Kafka and Spark, and has the README's steps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.run.ports import free_port
from tests.support.run.wheel import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
_EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
try:
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
finally:
    nbformat.write(notebook, sys.argv[2])
"""


def sources(kind: str) -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_notebook_has_the_steps_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quickstart = readme.partition("\n## Quickstart\n")[2].partition("\n## ")[0]
    options = r" --(?:detach|drain|flights|stop --data \S+|topic \S+ --data \S+)"
    commands = re.findall(rf"^forebay ([a-z]+(?:{options})*)", quickstart, re.MULTILINE)
    assert commands == [
        "init", "broker --topic flights:4 --data kafka --detach", "up --detach", "produce --flights", "stop --drain", "audit",
        "down", "broker --stop --data kafka",
    ]  # fmt: skip
    cells = "\n".join(sources("code"))
    assert [command for command in commands if f"!forebay {command}" not in cells] == []
    reading = re.findall(r"spark\.read\.format\(.*\)", quickstart)
    assert len(reading) == 1 and reading[0] in cells
    assert "http://127.0.0.1:7080/" in quickstart and "http://127.0.0.1:7080/" in "\n".join(sources("markdown"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder; processes that still run in it afterwards, because a step failed, are killed."""
    yield tmp_path
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(tmp_path):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # it has ended, or belongs to another user
            continue


def text_of(cell: dict[str, Any]) -> str:
    return "".join(
        "".join(output["text"] if "text" in output else output.get("data", {}).get("text/plain", ""))
        for output in cell["outputs"]
    )


def plain(text: str) -> str:
    """Return ``text`` without what moves a terminal's cursor or sets its colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)  # a minute alone; the machine may be busy with other tests
def test_notebook_shows_records_in_a_dataframe_and_in_batches(folder: Path) -> None:
    """Its ports are replaced by free ones; all else is as a reader runs it."""
    broker, driver, agent = free_port(), free_port(), free_port()
    text = NOTEBOOK.read_text(encoding="utf-8").replace("127.0.0.1:7080", f"127.0.0.1:{driver}")
    text = text.replace("forebay broker --topic", f"forebay broker --port {broker} --topic")
    text = text.replace("!forebay init", f"!forebay init --broker 127.0.0.1:{broker}")
    (folder / "quickstart.ipynb").write_text(text, encoding="utf-8")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "ipython"), "FOREBAY__DRIVER__URL": f"http://127.0.0.1:{driver}",
        "FOREBAY__AGENT__URL": f"http://127.0.0.1:{agent}", "FOREBAY__SPARK__SPARK_UI_ENABLED": "false",
    }  # fmt: skip
    command = [sys.executable, "-c", _EXECUTE, "quickstart.ipynb", "done.ipynb"]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=850, check=False)
    done = json.loads((folder / "done.ipynb").read_text(encoding="utf-8"))
    cells = {"".join(cell["source"]): text_of(cell) for cell in done["cells"] if cell["cell_type"] == "code"}
    shown = "\n".join(cells.values())
    assert run.returncode == 0, run.stderr + shown

    def output(part: str) -> str:
        return next(text for source, text in cells.items() if part in source)

    assert f"127.0.0.1:{broker}\n" in plain(output("forebay broker --port"))
    assert "wrong" not in output("forebay validate") and "flights: 4 partitions" in output("forebay validate")
    assert "sent 20000 records to flights, all acknowledged" in output("forebay produce")
    assert '"year":2013' in output(".load()") and output(".load()").rstrip().endswith("20000")
    assert "the driver has stopped" in output("--drain") and "batch=" in output("--drain")
    assert re.search(r"\|\s+UA\|\s*\d+\|", output("read.parquet")), output("read.parquet")
    flights = re.findall(r"^\|\s+\w\w\|\s*(\d+)\|", output("read.parquet"), re.MULTILINE)
    assert sum(map(int, flights)) == 20_000
    # a cell is as narrow as a small terminal
    counts = re.findall(r"^(duplicates|missing) +(\d+) *$", plain(output("forebay audit")), re.MULTILINE)
    assert counts == [("duplicates", "0"), ("missing", "0")] * 4, output("forebay audit")
    assert "has stopped all services" in output("forebay down")
    assert output("forebay broker --stop").count("has stopped") == 2
    assert "Traceback" not in shown
    (log,) = folder.rglob("driver.log")
    check_logs(log.parent, len(list(folder.rglob("out/batch=*"))))


def check_logs(logs: Path, batches: int) -> None:
    """Each batch has one line with its fields, and no service logs a warning from the start to the first batch."""
    lines = (logs / "driver.log").read_text(encoding="utf-8").splitlines()
    completed = [line for line in lines if "batch completed" in line]
    fields = r"stream=flights batch=\d+ number=\d+.* records=\d+ .*scheduling_delay_ms=\d+ .*processing_ms=.* offsets=flights/"
    assert len(completed) == batches and all(re.search(fields, line) for line in completed), completed
    first = completed[0].split()[0]  # times of one format have the order of texts
    begun = [
        line
        for log in logs.glob("*.log")
        for line in log.read_text(encoding="utf-8").splitlines()
        if re.match(r"\d{4}-\d\d-\d\dT", line) and line.split()[0] <= first
    ]
    assert len(begun) > 8 and [line for line in begun if " INFO " not in line] == []
    assert "WARN" not in "\n".join(lines[: lines.index(completed[0])])  # Java's lines have another format
