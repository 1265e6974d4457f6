"""The Dockerfile and the compose file: linted, valid, and consistent with each other and with the services."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.main import main
from driver.decision_loop.stopping import GRACE_SECONDS
from driver.service import CLOSE_SECONDS
from forebay.security.roles import ROLES
from forebay.settings.reading.load import load
from tests.conftest import missing
from tests.support.run.wheel import ROOT
from tests.support.servers import deployment_tools

FOLDER = ROOT / "deploy" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "forebay"}


def test_linter_finds_nothing_in_the_dockerfile() -> None:
    deployment_tools.require(missing)
    done = subprocess.run(
        [deployment_tools.hadolint(), "--failure-threshold", "info", str(FOLDER / "Dockerfile")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_file_fits_the_schema_of_compose() -> None:
    deployment_tools.require(missing)
    schema = deployment_tools.compose_schema()
    known = {key: value for key, value in COMPOSE.items() if key != "name"}  # newer than the schema
    jsonschema.Draft7Validator(schema).validate(known)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({"services": {"driver": {"imagee": "x"}}})


def test_image_runs_as_another_user_than_root_and_checks_its_health() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in final and "\nHEALTHCHECK " in final
    assert final.index("\nUSER ") < final.index("\nENTRYPOINT ")
    assert "pip install" not in final, "the last stage has no tools of the build"


def test_build_context_has_everything_that_the_wheel_is_built_from() -> None:
    (packages,) = re.findall(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    (hook,) = re.findall(r'^path = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert {
        *re.findall(r'"(\w+)"', packages),
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "requirements.lock",
        hook,
    } <= allowed


def test_configuration_of_compose_is_valid_and_names_its_services(capsys: pytest.CaptureFixture[str]) -> None:
    path = FOLDER / "forebay.toml"
    assert main(["--config", str(path), "validate", "--offline"]) == 0, capsys.readouterr()
    settings = load(path, {})
    assert settings.driver.urls == ("http://driver:7080",) and "driver" in SERVICES
    assert settings.kafka.options["bootstrap.servers"] == "kafka:9092"
    assert settings.agent.host == settings.receiver.host in SERVICES["agent"]["networks"]["default"]["aliases"]
    (topic,) = settings.kafka.topics
    assert f"--topic {topic} " in SERVICES["topic"]["command"]
    for folder in (settings.wal.url, settings.driver.journal, f"file://{settings.agent.blocks}"):
        assert folder.startswith("file:///var/lib/forebay/"), "on the shared volume"
    assert settings.driver.stop_timeout + GRACE_SECONDS + CLOSE_SECONDS < 90
    assert all(service["stop_grace_period"] == "90s" for service in OURS.values())


def test_compose_gives_every_role_a_token_once() -> None:
    (script,) = SERVICES["tokens"]["command"]
    named = script.partition("for role in ")[2].partition(";")[0].split()
    assert set(named) == set(ROLES)
    assert "umask 077" in script and script.index("-s /run/forebay/tokens") < script.index("forebay token new")


def test_services_mount_the_files_beside_the_compose_file() -> None:
    for service in OURS.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (FOLDER / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]


def test_services_have_a_read_only_root_and_no_capability() -> None:
    for name, service in OURS.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/health" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("path", "code"), [("/v1/health", 0), ("/other", 1), ("none", 0)])
def test_health_check_succeeds_only_if_the_service_is_healthy(path: str, code: int, service: str) -> None:
    url = path if path == "none" else f"{service}{path}"
    done = subprocess.run(
        [sys.executable, str(FOLDER / "healthy.py")], env={"FOREBAY_HEALTH_URL": url}, check=False, timeout=60
    )
    assert done.returncode == code


def test_pages_say_what_was_not_run() -> None:
    for name in ("kubernetes", "emr", "dataproc"):
        page = Path(ROOT / "docs" / "deploy" / f"{name}.md").read_text()
        assert "**Not run.**" in page.partition("\n## ")[0], name
