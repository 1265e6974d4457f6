"""docs/tutorial.md: its commands and its code, run as they are written, on a mock broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from forebay.kafka.embedded.broker import MockBroker
from forebay.kafka.embedded.loader import flights
from tests.support.processes.up import status, until
from tests.support.run.ports import free_port
from tests.support.run.wheel import ROOT

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
#: heading → its blocks: language, code
STEPS = {
    part.partition("\n")[0]: re.findall(r"^```(\w+)\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    for part in PAGE.split("\n## ")[1:]
}
_FLIGHTS = 20_000
_STEP_SECONDS = 240.0


def run(step: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Write the files and run the commands of a step, and return what they print on stdout."""
    printed = ""
    for language, code in STEPS[step]:
        if language == "python":
            name = code.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(code)
        elif language == "sh":
            with (folder / "stderr").open("a") as messages:
                done = subprocess.run(
                    ["bash", "-e", "-c", code], cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=messages, text=True, timeout=_STEP_SECONDS, check=False,
                )  # fmt: skip
            errors = (folder / "stderr").read_text()[-3000:]
            logs = folder / "data" / "logs" / "up.log"
            log = logs.read_text()[-3000:] if logs.exists() else ""
            assert done.returncode == 0, f"{step}: {code}\n{done.stdout}\n{errors}\n{log}"
            printed += done.stdout
    return printed


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user, with a broker of the test's own, free ports, and short intervals."""
    with MockBroker() as broker:
        broker.create_topic("flights", 4)
        made = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FOREBAY__KAFKA__BOOTSTRAP_SERVERS": broker.address,
            "FOREBAY__DRIVER__URL": f"http://127.0.0.1:{free_port()}",
            "FOREBAY__AGENT__URL": f"http://127.0.0.1:{free_port()}",
            "FOREBAY__DRIVER__BATCH_INTERVAL": "500ms",
            "FOREBAY__SPARK__spark_ui_enabled": "false",
        }
        try:
            yield made
        finally:
            if (tmp_path / "forebay.toml").exists():
                subprocess.run(["forebay", "down"], cwd=tmp_path, env=made, timeout=_STEP_SECONDS, check=False)


def shown(folder: Path, environment: Mapping[str, str]) -> str:
    """Return what ``show.py`` prints."""
    command = [sys.executable, "show.py"]
    return subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=True).stdout


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_tutorial_does_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    broker, configuration, job, start, send, bad_record, proof, correction, stop = (s for s in STEPS if s[0].isdigit())
    assert broker == "1. Start a broker"  # the mock broker takes its place
    for step in (configuration, job, start):
        run(step, tmp_path, environment)
    table = run(send, tmp_path, environment)
    assert f"{_FLIGHTS} flights" in table
    for line in PAGE.partition("```\n         flights")[2].partition("…")[0].splitlines()[2:]:
        assert line.split() in [row.split() for row in table.splitlines()], "the page shows what the command prints"
    assert "1" in run(bad_record, tmp_path, environment)
    run(proof, tmp_path, environment)
    run(correction, tmp_path, environment)
    batches = sorted((tmp_path / "out").glob("batch=*"))
    assert batches
    driver = environment["FOREBAY__DRIVER__URL"]
    until(lambda: ((known := status(driver)) is not None and known.replay is None) or None, _STEP_SECONDS)
    assert all("worst" in ds.dataset(batch, format="parquet").schema.names for batch in batches)
    expected = [json.loads(value) for _, value in flights(_FLIGHTS) if value is not None]
    again = shown(tmp_path, environment)
    assert f"{len(expected)} flights" in again and "worst" in again
    assert str(float(max(one["arr_delay"] for one in expected if one["arr_delay"] is not None))) in again
    run(stop, tmp_path, environment)
