"""The Helm chart: helm accepts and renders it, the result fits Kubernetes' schemas, and its configuration is valid."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry
from referencing.jsonschema import DRAFT7

from deploy.main import main
from driver.decision_loop.stopping import GRACE_SECONDS
from driver.service import CLOSE_SECONDS as DRIVER_CLOSE_SECONDS
from executor_agent.main import CLOSE_SECONDS as AGENT_CLOSE_SECONDS
from executor_agent.main import STOP_MARGIN_SECONDS
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from tests.conftest import missing
from tests.support.run.wheel import ROOT
from tests.support.servers import deployment_tools

CHART = ROOT / "deploy" / "helm" / "forebay"

#: values that use every part of the chart
ALL_VALUES = {
    "image": {"repository": "registry.example/team/forebay", "tag": "9", "pullSecrets": [{"name": "pull"}]},
    "tokens": {"existingSecret": "own-tokens"},
    "envFrom": [{"secretRef": {"name": "bucket"}}],
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/forebay"}},
    "driver": {
        "env": [{"name": "A", "value": "1"}],
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
    "agent": {
        "env": [{"name": "B", "value": "2"}],
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"operator": "Exists"}],
    },
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
}

Manifests = dict[tuple[str, str], dict[str, Any]]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    deployment_tools.require(missing)
    return subprocess.run(
        [deployment_tools.helm(), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def rendered(folder: Path, values: Mapping[str, Any], release: str = "forebay") -> Manifests:
    """(kind, name) → manifest, as ``helm install`` would send it."""
    path = folder / "values.json"
    path.write_text(json.dumps(values))
    done = helm("template", release, str(CHART), "--namespace", "streams", "--values", str(path))
    assert done.returncode == 0, done.stderr
    return {(m["kind"], m["metadata"]["name"]): m for m in yaml.safe_load_all(done.stdout) if m}


@cache
def registry() -> Registry[Any]:
    """The definitions that the schemas of Kubernetes refer to."""
    definitions = json.loads((deployment_tools.kubernetes_schemas() / "_definitions.json").read_text())
    made: Registry[Any] = Registry().with_resource("_definitions.json", DRAFT7.create_resource(definitions))
    return made


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise ValidationError unless Kubernetes knows each field and its type."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    name = f"{manifest['kind'].lower()}{f'-{group.partition(chr(46))[0]}' if group else ''}-{version}.json"
    schema = json.loads((deployment_tools.kubernetes_schemas() / name).read_text())
    jsonschema.Draft7Validator(schema, registry=registry()).validate(manifest)


@pytest.fixture
def in_kubernetes(tmp_path: Path) -> tuple[Manifests, Settings]:
    made = rendered(tmp_path, {})
    path = tmp_path / "forebay.toml"
    path.write_text(made["ConfigMap", "forebay"]["data"]["forebay.toml"])
    assert main(["--config", str(path), "validate", "--offline"]) == 0
    return made, load(path, {})


def test_helm_finds_no_mistake_in_the_chart() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", [{}, ALL_VALUES], ids=["defaults", "all values"])
def test_rendered_manifests_fit_the_schemas_of_kubernetes(values: dict[str, Any], tmp_path: Path) -> None:
    made = rendered(tmp_path, values)
    assert {("StatefulSet", "forebay-driver"), ("DaemonSet", "forebay-agent"), ("Service", "forebay-driver")} <= set(
        made
    )
    for manifest in made.values():
        check_manifest(manifest)
        assert manifest["metadata"]["namespace"] == "streams"
    broken = {**made["Service", "forebay-driver"], "spec": {"portz": []}}
    with pytest.raises(jsonschema.ValidationError):  # the schemas refuse what Kubernetes does not know
        check_manifest(broken)


def test_values_reach_the_pods(tmp_path: Path) -> None:
    made = rendered(tmp_path, ALL_VALUES)
    for kind, name, variable in (("StatefulSet", "forebay-driver", "A"), ("DaemonSet", "forebay-agent", "B")):
        pod = made[kind, name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "registry.example/team/forebay:9"
        assert variable in {entry["name"] for entry in container["env"]}
        assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
        assert pod["nodeSelector"] == {"disk": "nvme"} and pod["tolerations"] == [{"operator": "Exists"}]
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert "own-tokens" in {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    assert made["NetworkPolicy", "forebay-driver"]["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]
    assert made["ServiceAccount", "forebay"]["metadata"]["annotations"]


def test_another_release_has_names_and_a_driver_of_its_own(tmp_path: Path) -> None:
    made = rendered(tmp_path, {}, "orders")
    assert ("StatefulSet", "orders-forebay-driver") in made
    assert 'urls = ["http://orders-forebay-driver:7080"]' in made["ConfigMap", "orders-forebay"]["data"]["forebay.toml"]


def test_changed_configuration_restarts_the_pods(tmp_path: Path) -> None:
    def checksums(values: dict[str, Any]) -> set[str]:
        made = rendered(tmp_path, values)
        pods = (made["StatefulSet", "forebay-driver"], made["DaemonSet", "forebay-agent"])
        return {pod["spec"]["template"]["metadata"]["annotations"]["checksum/configuration"] for pod in pods}

    before, after = checksums({}), checksums({"jobs": {"jobs.py": "def process(batch): ..."}})
    assert len(before) == len(after) == 1 and before != after


@pytest.mark.parametrize(
    "values", [{"tokens": {"existingSecret": ""}}, {"driver": {"replicas": 2}}, {"image": {"repository": ""}}]
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    done = helm("template", "forebay", str(CHART), "--values", str(path))
    assert done.returncode != 0 and "values don't meet the specifications of the schema" in done.stderr


def test_pods_name_what_is_there(in_kubernetes: tuple[Manifests, Settings]) -> None:
    made, settings = in_kubernetes
    driver, agent = made["StatefulSet", "forebay-driver"]["spec"], made["DaemonSet", "forebay-agent"]["spec"]
    service = made["Service", "forebay-driver"]["spec"]
    assert service["selector"] == driver["template"]["metadata"]["labels"] == driver["selector"]["matchLabels"]
    assert settings.driver.urls == (f"http://forebay-driver:{service['ports'][0]['port']}",)
    assert driver["replicas"] == 1
    assert settings.security.token_file == "/etc/forebay/secret/tokens"
    assert settings.receiver.mode == "managed"  # no other process starts them
    for pod in (driver["template"]["spec"], agent["template"]["spec"]):
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert container["args"][:2] == ["--config", "/etc/forebay/forebay.toml"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        secret = next(volume["secret"] for volume in pod["volumes"] if "secret" in volume)
        assert secret["defaultMode"] & 0o007 == 0, "a file that everybody may read is refused"
    (mount,) = (m for m in agent["template"]["spec"]["containers"][0]["volumeMounts"] if m["name"] == "blocks")
    assert mount["mountPath"] == str(settings.agent.blocks)


def test_pods_have_the_time_to_end_in_order(in_kubernetes: tuple[Manifests, Settings]) -> None:
    made, settings = in_kubernetes
    driver = settings.driver.stop_timeout + GRACE_SECONDS + DRIVER_CLOSE_SECONDS
    agent = settings.receiver.drain_timeout + STOP_MARGIN_SECONDS + AGENT_CLOSE_SECONDS
    for manifest, needed in (
        (made["StatefulSet", "forebay-driver"], driver),
        (made["DaemonSet", "forebay-agent"], agent),
    ):
        assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed
