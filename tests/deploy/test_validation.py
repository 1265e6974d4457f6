"""``forebay validate``: each check, and its exit code."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import validation
from deploy.invocation import prepare_job_imports
from deploy.main import main
from forebay.errors import SettingsError, UsageError
from forebay.kafka.broker import MockBroker


def checked(project: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    code = main(["--config", str(project.config), "--json", "validate"])
    return code, {line["name"]: (line["outcome"], line["detail"]) for line in json.loads(capsys.readouterr().out)}


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)


def test_an_unreachable_broker_is_exit_code_3_and_its_topics_are_unknown(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", 0.5)
    code, checks = checked(project, capsys)
    assert code == 3
    assert checks["broker"][0] == "unreachable"
    assert "127.0.0.1:1" in checks["broker"][1]
    assert checks["topics"][0] == "unknown"
    assert checks["job"][0] == checks["wal"][0] == checks["journal"][0] == checks["blocks"][0] == "fine"


def test_a_missing_topic_is_wrong_and_is_not_made_by_asking(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with MockBroker() as broker:
        project.replace('127.0.0.1:1"\n[wal]', f'{broker.address}"\n[wal]')
        for _ in range(2):
            code, checks = checked(project, capsys)
            assert code == 2
            assert checks["broker"][0] == "fine"
            outcome, detail = checks["topics"]
            assert outcome == "wrong"
            assert detail == f"kafka.topics: {broker.address} has no topic t; create it or name another"


def test_an_option_that_librdkafka_does_not_know_is_wrong(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.replace("[wal]", '"fetch.wait.max.mss" = 1\n[wal]')
    code, checks = checked(project, capsys)
    assert code == 2
    assert checks["kafka options"][0] == "wrong"
    assert "fetch.wait.max.mss" in checks["kafka options"][1]


def test_writing_is_tried_and_leaves_nothing_behind(project: Any) -> None:
    before = sorted(project.folder.iterdir())
    validation.require_writable("wal.url", f"file://{project.folder}/new/folder")
    assert sorted(project.folder.iterdir()) == before


def test_a_place_that_refuses_files_is_refused_even_for_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, where a folder would have to be")
    with pytest.raises(SettingsError, match=rf"wal\.url: file://{tmp_path}/file/wal can't be written"):
        validation.require_writable("wal.url", f"file://{tmp_path}/file/wal")


def test_an_unknown_store_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="ftp://host"):
        validation.require_writable("wal.url", "ftp://host/wal")


def test_a_remote_store_that_does_not_answer_is_unreachable(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.replace("[wal]", '[storage.s3]\nendpoint_url = "http://127.0.0.1:1"\n[wal]')
    project.replace(f"file://{project.folder}/wal", "s3://bucket/wal")
    code, checks = checked(project, capsys)
    assert code == 3
    assert checks["wal"][0] == "unreachable"
    assert checks["wal"][1].startswith("wal.url: s3://bucket/wal")


def test_the_job_can_be_imported_by_children_too(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's Python workers import the job by PYTHONPATH."""
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    prepare_job_imports(project.config)
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(project.folder), os.getcwd(), "/inherited"]
    prepare_job_imports(project.config)
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(project.folder), os.getcwd(), "/inherited"]
    assert sys.path.count(str(project.folder)) == 1
