"""The example configurations: this release accepts each of them, and untested ones say that they are untested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.main import main
from driver.decision_loop.stopping import GRACE_SECONDS
from driver.service import CLOSE_SECONDS as DRIVER_CLOSE_SECONDS
from executor_agent.main import CLOSE_SECONDS as AGENT_CLOSE_SECONDS
from executor_agent.main import STOP_MARGIN_SECONDS
from forebay.settings.load import load
from forebay.settings.schema import Settings

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
KUBERNETES = EXAMPLES / "kubernetes" / "forebay.yaml"
FILES = sorted(EXAMPLES.rglob("*.toml"))


def kinds() -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) → manifest."""
    return {(m["kind"], m["metadata"]["name"]): m for m in yaml.safe_load_all(KUBERNETES.read_text())}


@pytest.fixture
def in_kubernetes(tmp_path: Path) -> Settings:
    path = tmp_path / "forebay.toml"
    path.write_text(kinds()["ConfigMap", "forebay"]["data"]["forebay.toml"])
    assert main(["--config", str(path), "validate", "--offline"]) == 0
    return load(path, {})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_example_is_valid_without_changes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(path), "validate", "--offline"]) == 0, capsys.readouterr()


def test_offline_a_wrong_option_is_found_and_nothing_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "one-machine.toml").read_text()
    path = tmp_path / "forebay.toml"
    path.write_text(text.replace('"bootstrap.servers"', '"fetch.wait.max.mss" = 1\n"bootstrap.servers"', 1))
    assert main(["--config", str(path), "validate", "--offline"]) == 2
    words = capsys.readouterr().out
    assert "fetch.wait.max.mss" in words and "broker" not in words and "wal:" not in words


@pytest.mark.parametrize("path", [EXAMPLES / "yarn.toml", KUBERNETES], ids=["yarn", "kubernetes"])
def test_untested_example_says_that_it_is_untested(path: Path) -> None:
    assert "untested" in "".join(path.read_text().splitlines()[:4])


def test_pods_name_what_is_there(in_kubernetes: Settings) -> None:
    made = kinds()
    driver, agent = made["StatefulSet", "forebay-driver"]["spec"], made["DaemonSet", "forebay-agent"]["spec"]
    service = made["Service", "forebay-driver"]["spec"]
    assert service["selector"] == driver["template"]["metadata"]["labels"] == driver["selector"]["matchLabels"]
    assert in_kubernetes.driver.urls == (f"http://forebay-driver:{service['ports'][0]['port']}",)
    assert driver["replicas"] == 1
    assert in_kubernetes.security.token_file == "/etc/forebay/secret/tokens"
    assert in_kubernetes.receiver.mode == "managed"  # no other process starts them
    for pod in (driver["template"]["spec"], agent["template"]["spec"]):
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert container["command"][1:3] == ["--config", "/etc/forebay/forebay.toml"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        secret = next(volume["secret"] for volume in pod["volumes"] if "secret" in volume)
        assert secret["defaultMode"] & 0o007 == 0, "a file that everybody may read is refused"


def test_pods_have_the_time_to_end_in_order(in_kubernetes: Settings) -> None:
    made = kinds()
    driver = in_kubernetes.driver.stop_timeout + GRACE_SECONDS + DRIVER_CLOSE_SECONDS
    agent = in_kubernetes.receiver.drain_timeout + STOP_MARGIN_SECONDS + AGENT_CLOSE_SECONDS
    for manifest, needed in (
        (made["StatefulSet", "forebay-driver"], driver),
        (made["DaemonSet", "forebay-agent"], agent),
    ):
        assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed
