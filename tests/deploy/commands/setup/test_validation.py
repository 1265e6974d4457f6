"""``forebay validate``: each check, and its exit code."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.setup import validation
from deploy.console.invocation import prepare_job_imports
from deploy.main import main
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import SettingsError, UsageError
from forebay.settings.reading.load import from_values
from forebay_start import NAMES


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


def test_missing_topic_is_wrong_and_is_not_created_by_the_check(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockBroker() as broker:
        project.replace('127.0.0.1:1"\n[wal]', f'{broker.address}"\n[wal]')
        for _ in range(2):
            code, checks = checked(project, capsys)
            assert code == 2
            assert checks["broker"][0] == "fine"
            outcome, detail = checks["topics"]
            assert outcome == "wrong"
            assert detail == f"kafka.topics: {broker.address} has no topic t; create it or name another one"


def test_an_option_that_librdkafka_does_not_know_is_wrong(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.replace("[wal]", '"fetch.wait.max.mss" = 1\n[wal]')
    code, checks = checked(project, capsys)
    assert code == 2
    assert checks["kafka options"][0] == "wrong"
    assert "fetch.wait.max.mss" in checks["kafka options"][1]


def test_write_check_leaves_no_file(project: Any) -> None:
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


def test_a_remote_store_without_credentials_is_wrong_and_says_what_to_check(
    project: Any, quick_broker: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    project.replace("[wal]", '[storage.s3]\nendpoint_url = "http://127.0.0.1:1"\n[wal]')
    project.replace(f"file://{project.folder}/wal", "s3://bucket/wal")
    code, checks = checked(project, capsys)
    assert (code, checks["wal"][0]) == (2, "wrong")
    message = checks["wal"][1]
    assert message.startswith(
        "wal.url: cannot write to s3://bucket/wal: access denied (Unable to locate credentials); check "
    )


def test_a_remote_store_that_does_not_answer_is_unreachable(
    project: Any, quick_broker: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "STORE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
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


@pytest.fixture
def quick_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker does not answer, and is no matter."""
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", 0.2)


def test_each_mistake_of_the_configuration_has_its_own_line(
    project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    project.replace("[wal]", "[wal]\nretentoin = '1d'")
    project.replace('engine = "local"', 'engine = "locla"')
    assert main(["--config", str(project.config), "validate"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["wrong", "wrong", "unknown"]
    assert sum("did you mean" in line for line in lines) == 2


def test_installed_host_whose_configuration_names_no_tokens_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units give the services tokens, so commands without them would get HTTP 401."""
    config = tmp_path / "forebay.toml"

    def tokens() -> validation.Check:
        kafka = {"topics": ["t"], "bootstrap.servers": "b:1"}
        (check,) = validation._check_access(from_values({"stream": "s", "data": "/srv/f", "kafka": kafka}), config)
        return check

    assert tokens().outcome == "fine"
    monkeypatch.setattr(validation, "CONFIGURATION", str(config))
    monkeypatch.setattr(validation, "unit_path", lambda role: str(tmp_path / role))
    assert tokens().outcome == "fine"  # no unit
    (tmp_path / "agent").touch()
    assert tokens().outcome == "note"
    assert 'write token_file = "/etc/forebay/tokens" below [security]' in tokens().detail


@pytest.mark.parametrize("section", ["driver", "agent"])
def test_an_address_that_services_refuse_without_tokens_is_wrong(
    section: str, project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    port = {"driver": "1", "agent": "2"}[section]
    project.replace(f'"http://127.0.0.1:{port}"', f'"http://0.0.0.0:{port}"')
    code, checks = checked(project, capsys)
    assert code == 2
    outcome, message = checks["tokens"]
    assert outcome == "wrong" and f"http://0.0.0.0:{port}: without tokens" in message


def test_urls_on_loopback_beside_drivers_on_other_hosts_are_noted_offline_too(
    project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    code, checks = checked(project, capsys)
    assert code == 3 and "addresses" not in checks
    project.replace("[driver]", '[driver]\nurls = ["http://a:7080", "http://127.0.0.1:1"]')
    for options in ((), ("--offline",)):
        code = main(["--config", str(project.config), "--json", "validate", *options])
        assert code == (0 if options else 3), "a host may run neither service, or have a proxy"
        notes = [check["detail"] for check in json.loads(capsys.readouterr().out) if check["outcome"] == "note"]
        assert notes == [
            'driver.url = "http://127.0.0.1:1" is on loopback, so other hosts can\'t reach a driver of this host, although '
            'driver.urls names http://a:7080; if one runs here, set driver.url = "http://0.0.0.0:1"',
            'agent.url = "http://127.0.0.1:2" is on loopback, so tasks on other hosts can\'t read blocks from an agent of '
            'this host; if one runs here, set agent.url = "http://0.0.0.0:2"',
        ]
    project.replace("http://127.0.0.1:2", "http://0.0.0.0:2")
    project.replace('url = "http://127.0.0.1:1"', 'url = "http://10.0.0.1:1"')
    assert main(["--config", str(project.config), "--json", "validate", "--offline"]) == 0
    assert "note" not in capsys.readouterr().out


def test_a_master_that_spark_can_not_read_is_wrong_offline_too(
    project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    project.replace('engine = "local"', 'engine = "spark"\n[spark]\n"spark.master" = "loca[2]"')
    assert main(["--config", str(project.config), "validate", "--offline"]) == 2
    assert "spark.'spark.master' = \"loca[2]\": did you mean local[2]?" in capsys.readouterr().out


def test_an_unknown_key_of_a_store_is_wrong_with_its_name(
    project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    project.replace("[wal]", '[storage.s3]\nendpoint_urll = "http://127.0.0.1:1"\n[wal]')
    project.replace(f"file://{project.folder}/wal", "s3://bucket/wal")
    code, checks = checked(project, capsys)
    assert code == 2
    outcome, message = checks["wal"]
    assert outcome == "wrong" and "storage.s3.endpoint_urll" in message and "did you mean endpoint_url?" in message


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("abfs", "adlfs")])
def test_a_store_whose_package_is_missing_is_wrong_with_the_package(
    scheme: str,
    package: str,
    project: Any,
    capsys: pytest.CaptureFixture[str],
    quick_broker: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (package, f"{package}.core"):
        monkeypatch.setitem(sys.modules, name, None)
    loaded = import_module("fsspec.registry")._registry
    monkeypatch.delitem(loaded, scheme, raising=False)  # an earlier test may have used the package
    project.replace(f"file://{project.folder}/wal", f"{scheme}://bucket/wal")
    _, checks = checked(project, capsys)
    assert checks["wal"][0] == "wrong" and f"pip install 'forebay[{scheme}]'" in checks["wal"][1]


def test_modules_that_forebays_packages_hide_are_named(
    project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    (project.folder / "wal.py").write_text("")
    _, checks = checked(project, capsys)
    assert checks["names"] == (
        "fine",
        f"{project.folder}/wal.py: `import wal` imports Forebay's own package; rename this one if a job imports it",
    )


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_job_module_with_a_name_of_forebays_own_is_refused(
    name: str, project: Any, capsys: pytest.CaptureFixture[str], quick_broker: None
) -> None:
    (project.folder / f"{name}.py").write_text("def process(batch):\n    pass\n")
    project.replace("jobs:process", f"{name}:process")
    code, checks = checked(project, capsys)
    assert code == 2
    assert checks["job"][0] == "wrong" and f"Forebay has a package named {name!r}" in checks["job"][1]
