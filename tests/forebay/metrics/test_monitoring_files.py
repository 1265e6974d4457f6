"""The alert rules and the dashboard: they name metrics that exist, promtool accepts them, and each alert fires when it should."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import executor_agent.metrics
import receiver.metrics
from driver.metrics import definitions
from forebay.metrics.definition import Metric
from tests.conftest import missing, running_in_ci
from tests.support.servers import prometheus

ROOT = Path(__file__).parents[3]
ALERTS, DASHBOARD = (ROOT / "deploy" / "monitoring" / name for name in ("alerts.yml", "grafana.json"))
#: of the client library, which the services serve too
OTHERS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
_NAMES = re.compile(r"\b(?:forebay_[a-z0-9_]+|process_[a-z_]+|up)\b")


def metrics() -> list[Metric]:
    modules = (definitions, receiver.metrics, executor_agent.metrics)
    return list({v for module in modules for v in vars(module).values() if isinstance(v, Metric)})


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row")


def queries() -> list[str]:
    """Every query of the dashboard, as Prometheus gets it."""
    return [
        target["expr"].replace("$stream", "s").replace("$__rate_interval", "1m")
        for panel in panels()
        for target in panel["targets"]
    ]


@pytest.fixture
def promtool(tmp_path: Path) -> Path:
    """A folder for promtool; skips or fails if there is no promtool."""
    if not prometheus.is_there():
        if not running_in_ci():
            missing("there is no Prometheus here: run python -m tests.support.servers.prometheus")
        prometheus.fetch()
    return tmp_path


def test_services_define_no_metric_twice() -> None:
    names = [metric.name for metric in metrics()]
    assert len(names) == len(set(names)) > 70
    assert all(metric.help.endswith(".") for metric in metrics())


@pytest.mark.parametrize("query", [*queries(), *(rule["expr"] for rule in rules())])
def test_query_names_metrics_and_labels_that_exist(query: str) -> None:
    series = {name: metric for metric in metrics() for name in metric.series}
    named = set(_NAMES.findall(query)) - OTHERS
    assert named <= set(series), named - set(series)
    common = {"stream", "receiver", "host", "instance", "service", "job", "le", "version"}
    for name, selector in re.findall(r"\b(forebay_[a-z0-9_]+)\{([^}]*)\}", query):
        labels = dict(re.findall(r"(\w+)!?=~?\"([^\"]*)\"", selector))
        assert set(labels) <= {*series[name].labels, *common}, query
        for label in set(labels) & set(series[name].labels):
            if series[name].values:
                assert set(labels[label].split("|")) <= set(series[name].values), query


def test_each_alert_has_severity_meaning_and_first_step() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "meaning", "step"}, rule["alert"]
        for page in re.findall(r"docs/\S+\.md", rule["annotations"]["step"]):
            assert (ROOT / page).exists(), page


def test_panels_have_places_of_their_own_on_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    identifiers = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(identifiers) == len(set(identifiers))
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells


def test_promtool_accepts_rules_and_queries_of_the_dashboard(promtool: Path) -> None:
    prometheus.promtool("check", "rules", str(ALERTS))
    recorded = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    file = promtool / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in prometheus.promtool("check", "rules", str(file))


#: series of a healthy stream, with their values every minute, in promtool's notation
HEALTHY = {
    'up{job="forebay", service="driver"}': "1x300",
    'forebay_driver_leads{stream="s"}': "1x300",
    'forebay_driver_state{stream="s", state="failed"}': "0x300",
    'forebay_driver_snapshot_age_seconds{stream="s"}': "0.3x300",
    'forebay_driver_decision_longest_wait_seconds{stream="s"}': "0.1x300",
    'forebay_receiver_registrations_total{stream="s"}': "4x300",
    'forebay_build_info{stream="s", version="1"}': "1x300",
    'forebay_problems{stream="s", kind="receiver-gone"}': "0x300",
    'forebay_problems{stream="s", kind="agent-gone"}': "0x300",
    'forebay_problems{stream="s", kind="blocks-not-deleted"}': "0x300",
    'forebay_problems{stream="s", kind="cursor"}': "0x300",
    'forebay_problems{stream="s", kind="partitions-without-receiver"}': "0x300",
    'forebay_problems{stream="s", kind="kafka"}': "0x300",
    'forebay_partitions{stream="s", state="fault"}': "0x300",
    'forebay_lost_offsets_total{stream="s"}': "5x300",
    'forebay_partition_lag_records{stream="s", topic="t", partition="0"}': "20000x300",
    'forebay_taken_records_total{stream="s"}': "0+60000x300",
    'forebay_batches{stream="s", state="failed"}': "0x300",
    'forebay_batches{stream="s", state="unreadable"}': "0x300",
    'forebay_paused{stream="s"}': "0x300",
    'forebay_oldest_block_seconds{stream="s"}': "3x300",
    'forebay_batch_scheduling_delay_seconds_sum{stream="s"}': "0+3x300",
    'forebay_batch_scheduling_delay_seconds_count{stream="s"}': "0+60x300",
    'forebay_batch_interval_seconds{stream="s"}': "1x300",
    'forebay_receiver_failures_total{stream="s", receiver="r", kind="space"}': "2x300",
    'forebay_journal_free_bytes{stream="s"}': "9e9x300",
    'forebay_agent_free_bytes{stream="s", host="h"}': "50x300",
    'forebay_agent_quota_bytes{stream="s", host="h"}': "100x300",
    'forebay_agent_damaged_blocks{stream="s", host="h"}': "0x300",
    'forebay_driver_listener_events_total{stream="s", listener="l", outcome="dropped"}': "7x300",
}
#: alert → the series whose values cause it, their values, and the alert's labels besides its severity
CAUSES = {
    "ForebayTargetDown": ("up{", "0x300", {"job": "forebay", "service": "driver"}),
    "ForebayNoDriver": ("forebay_driver_leads", "0x300", {"stream": "s"}),
    "ForebayDriverFailed": ("forebay_driver_state", "1x300", {"stream": "s", "state": "failed"}),
    "ForebayDriverHangs": ("forebay_driver_snapshot_age", "0+60x300", {"stream": "s"}),
    "ForebayDecisionsSlow": ("forebay_driver_decision_longest", "3x300", {"stream": "s"}),
    "ForebayReceiverLost": ('forebay_problems{stream="s", kind="receiver-gone"', "1x300", {"stream": "s"}),
    "ForebayReceiversRestart": ("forebay_receiver_registrations", "0+1x300", {"stream": "s"}),
    "ForebayAgentLost": (
        'forebay_problems{stream="s", kind="agent-gone"', "1x300", {"stream": "s", "kind": "agent-gone"}
    ),
    "ForebayReleasesDiffer": ('forebay_build_info{stream="s", version="2"', "1x300", {"stream": "s"}),
    "ForebayPartitionFault": ("forebay_partitions", "1x300", {"stream": "s", "state": "fault"}),
    "ForebayRecordsLost": ("forebay_lost_offsets", "0+5x300", {"stream": "s"}),
    "ForebayIntakeBehind": ("forebay_partition_lag_records", "400000x300", {"stream": "s"}),
    "ForebayPartitionsWithoutReceiver": (
        'forebay_problems{stream="s", kind="partitions', "1x300",
        {"stream": "s", "kind": "partitions-without-receiver"},
    ),
    "ForebayJobFails": ('forebay_batches{stream="s", state="failed"', "1x300", {"stream": "s"}),
    "ForebayBatchUnreadable": (
        'forebay_batches{stream="s", state="unreadable"', "1x300", {"stream": "s", "state": "unreadable"}
    ),
    "ForebayBatchesBehind": ("forebay_oldest_block_seconds", "0+60x300", {"stream": "s"}),
    "ForebayPaused": ("forebay_paused", "1x300", {"stream": "s"}),
    "ForebayBatchesSlow": ("forebay_batch_scheduling_delay_seconds_sum", "0+900x300", {"stream": "s"}),
    "ForebayStoreFails": (
        "forebay_receiver_failures", "0+2x300", {"stream": "s", "receiver": "r", "kind": "space"}
    ),
    "ForebayJournalSpace": ("forebay_journal_free", "1e9x300", {"stream": "s"}),
    "ForebayBlockFolderFull": ("forebay_agent_free", "4x300", {"stream": "s", "host": "h"}),
    "ForebayDamagedCopies": ("forebay_agent_damaged", "1x300", {"stream": "s", "host": "h"}),
    "ForebayBlocksNotDeleted": (
        'forebay_problems{stream="s", kind="blocks', "1x300", {"stream": "s", "kind": "blocks-not-deleted"}
    ),
    "ForebayCursorExpired": ('forebay_problems{stream="s", kind="cursor"', "1x300", {"stream": "s", "kind": "cursor"}),
    "ForebayProblem": ('forebay_problems{stream="s", kind="kafka"', "1x300", {"stream": "s", "kind": "kafka"}),
    "ForebayEventsDropped": (
        "forebay_driver_listener_events", "0+1x300", {"stream": "s", "listener": "l", "outcome": "dropped"}
    ),
}  # fmt: skip


def case(cause: str, values: str, expected: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A test of promtool: the healthy stream, except the series that begin with ``cause``."""
    series = {name: values if cause and name.startswith(cause) else usual for name, usual in HEALTHY.items()}
    if cause and not any(name.startswith(cause) for name in HEALTHY):
        series[cause + "}"] = values
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": one} for name, one in series.items()],
        "alert_rule_test": [
            {
                "eval_time": "130m" if "build_info" in cause or "paused" in cause else "35m",
                "alertname": name,
                "exp_alerts": alerts,
            }
            for name, alerts in expected.items()
        ],
    }


def test_each_alert_fires_for_its_cause_alone_and_none_for_a_healthy_stream(promtool: Path) -> None:
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules()}
    assert set(CAUSES) == set(severities)
    nothing: dict[str, list[dict[str, Any]]] = {name: [] for name in CAUSES}
    cases = [case("", "", nothing)]
    for name, (cause, values, labels) in CAUSES.items():
        alert = {"exp_labels": {**labels, "severity": severities[name]}}
        cases.append(case(cause, values, {**nothing, name: [alert]}))
    # a driver that was killed reports nothing any more
    ended = {"exp_labels": {"stream": "s", "severity": severities["ForebayNoDriver"]}}
    cases.append(case("forebay_driver_leads", "1x20 stale", {**nothing, "ForebayNoDriver": [ended]}))
    bare = yaml.safe_load(ALERTS.read_text())  # promtool compares texts too, which say numbers in many ways
    for group in bare["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (promtool / "bare.yml").write_text(json.dumps(bare))
    (promtool / "test.yml").write_text(json.dumps({"rule_files": ["bare.yml"], "tests": cases}))
    prometheus.promtool("test", "rules", str(promtool / "test.yml"))
