"""A real Prometheus scrapes a running driver, agent and receivers, which it finds by the driver's list, and alerts fire."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import urllib3

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from tests.conftest import missing, running_in_ci
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.servers import prometheus
from tests.support.servers.prometheus import promtool

pytestmark = pytest.mark.kafka

ALERTS = Path(__file__).parents[3] / "deploy" / "monitoring" / "alerts.yml"
READER = "the-token-of-prometheus"
TOKENS = ("operator", "receiver", "agent", "task")

CONFIGURATION = """
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: forebay
    authorization: {{type: Bearer, credentials_file: {token}}}
    http_sd_configs:
      - url: {driver}/v1/metrics/targets
        refresh_interval: 1s
        authorization: {{type: Bearer, credentials_file: {token}}}
"""


@pytest.fixture
def _prometheus() -> None:
    """Skips or fails if there is no Prometheus; in CI it is fetched."""
    if prometheus.is_there():
        return
    if not running_in_ci():
        missing("there is no Prometheus here: run python -m tests.support.servers.prometheus")
    try:
        prometheus.fetch()
    except UsageError as error:
        missing(str(error))


def tokens(folder: Path) -> Path:
    file = folder / "tokens"
    file.touch(mode=0o600)
    file.write_text("".join(f"{role} the-token-of-{role}\n" for role in TOKENS) + f"reader {READER}\n")
    return file


@pytest.mark.usefixtures("_prometheus")
def test_prometheus_finds_all_processes_and_an_alert_fires_when_a_receiver_is_killed(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    rules, token = tmp_path / "alerts.yml", tmp_path / "reader"
    rules.write_text(re.sub(r"\bfor: \w+", "for: 1s", ALERTS.read_text()))
    token.write_text(READER)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path,
            kafka_broker.options,
            [topic],
            driver={"receiver_timeout": "2s", "placing_interval": "200ms"},
            receiver={"metrics_url": "http://127.0.0.1:0"},
            security={"token_file": str(tokens(tmp_path))},
        ) as cluster,
    ):
        target = flow.records + 100
        cluster.wait(lambda: flow.records >= target, "more records")
        configuration = CONFIGURATION.format(rules=rules, token=token, driver=cluster.driver_url)
        with prometheus.running(tmp_path / "prometheus", configuration) as watching:
            watching.until(lambda: sum(watching.query('up{job="forebay"}').values()) == 4, "all four targets up")
            services = watching.query("count by (service) (up)")
            assert services == {'{"service": "agent"}': 1, '{"service": "driver"}': 1, '{"service": "receiver"}': 2}
            for query in (
                "sum by (stream) (forebay_completed_records_total) > 0",
                "sum by (stream) (forebay_receiver_records_total) > 0",
                "sum by (stream) (forebay_receiver_store_seconds_count) > 0",
                "sum by (stream) (forebay_receiver_sync_seconds_count) > 0",
                "sum by (stream) (forebay_receiver_report_seconds_count) > 0",
                "sum by (stream) (forebay_batch_end_to_end_seconds_count) > 0",
                "sum by (stream) (forebay_agent_blocks) > 0",
                "sum by (stream) (forebay_partition_lag_seconds) >= 0",
            ):
                found = watching.until(lambda query=query: watching.query(query), query)  # type: ignore[misc]
                assert list(found) == ['{"stream": "stream"}'], query
            assert set(watching.query("count by (receiver) (forebay_receiver_records_total)")) == {
                '{"receiver": "r1"}', '{"receiver": "r2"}'
            }  # fmt: skip
            watching.until(lambda: not watching.firing(), "no alert of a healthy stream")
            for one in watching.get("targets", state="active")["activeTargets"]:
                headers = {"authorization": f"Bearer {READER}"}
                promtool("check", "metrics", text=_text(one["scrapeUrl"], headers, 200))
                _text(one["scrapeUrl"], {}, 401)
                _text(one["scrapeUrl"], {"authorization": "Bearer the-token-of-receiver"}, 403)

            cluster.kill9("r2")
            labels = watching.until(lambda: watching.firing().get("ForebayReceiverLost"), "the alert of the receiver")
            assert (labels["stream"], labels["severity"]) == ("stream", "warning")
            down = watching.until(lambda: watching.firing().get("ForebayTargetDown"), "the alert of the target")
            assert down["service"] == "receiver"
            cluster.restart("r2")
            watching.until(lambda: not watching.firing(), "no alert once it runs again")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def _text(url: str, headers: dict[str, str], status: int) -> str:
    answer = urllib3.request("GET", url, headers=headers, retries=False)
    assert answer.status == status, answer.data
    return answer.data.decode()
