"""Writes docs/METRICS.md from the definitions of metrics, and docs/operations/alerts.md from deploy/monitoring/alerts.yml."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the packages of this tree

import executor_agent.metrics
import receiver.metrics
from driver.metrics import definitions
from forebay.metrics.definition import Metric

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "METRICS.md"
ALERTS_PAGE = ROOT / "docs" / "operations" / "alerts.md"
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yml"

#: title of a table → the module that defines its metrics, and the label that all of them have
SERVICES: dict[str, tuple[ModuleType, str]] = {
    "Driver and stream": (definitions, "`stream`"),
    "Receivers": (receiver.metrics, "`stream`, `receiver`"),
    "Agents": (executor_agent.metrics, "`stream`, `host`"),
}

PAGE_HEAD = """\
# Metrics

Every service of Forebay serves its metrics at `/metrics`, in Prometheus' text format. This page shows how Prometheus finds the
services, and lists every metric. [Alerts](operations/alerts.md) explains the alert rules. `scripts/metrics_page.py` writes the
tables from the code.

## Let Prometheus find the services

The driver and the agents serve `/metrics` at `driver.url` and `agent.url`. Receivers serve it if `receiver.metrics_url` is set:

```toml
[receiver]
metrics_url = "http://0.0.0.0:7100"                   # of several receivers on a host, each takes the next free port
```

The driver lists all services of its stream at `/v1/metrics/targets`, for Prometheus' HTTP service discovery. A service that was
killed stays in the list, so that an alert can fire. A service that was stopped leaves it.

```yaml
# prometheus.yml
rule_files: [alerts.yml]                              # deploy/monitoring/alerts.yml
scrape_configs:
  - job_name: forebay                                 # the alert rules use this name
    scrape_interval: 15s
    authorization: {type: Bearer, credentials_file: /etc/prometheus/forebay.token}
    http_sd_configs:
      - url: http://driver-1:7080/v1/metrics/targets
        authorization: {type: Bearer, credentials_file: /etc/prometheus/forebay.token}
```

- If services require tokens, `/metrics` requires the role `reader` or `operator`. `forebay token new reader` prints a line for
  the token file of the services; write its token, without the role, into the file that Prometheus reads. Name `type: Bearer` in
  both places, because some versions of Prometheus send a token without its type to the list of targets. Without tokens, leave
  both `authorization` lines out.
- With standbys, write one entry in `http_sd_configs` for each driver. A standby answers with an empty list.
  While a driver does not answer, Prometheus keeps the list that it knows.
- With certificates, write `https://` and add `tls_config: {ca_file: …}` in both places.
- Without service discovery, list the addresses in `static_configs`.

## Metrics of your own programs

- A [direct stream](DIRECT.md#direct-streams) serves its metrics from your program, by `stream.metrics`. They have the names of
  the metrics of the driver below.
- A query of Structured Streaming has Spark's own metrics; [Progress](STREAMING.md#progress) shows how far it is behind. Of a
  query over an intake, the page and `forebay cursors` show the position too, and `forebay_wal_held_by_cursors_bytes` what it
  holds.

## Import the dashboard

In Grafana, import [grafana.json](../deploy/monitoring/grafana.json) and select your Prometheus as its data source. It shows one
stream at a time.

## Read the numbers

- Counters begin at 0 when their process starts; use `rate()` or `increase()`. Counters described by "since the stream began"
  come from the journal and survive restarts.
- Histograms of batches have one event for each completed batch. Counts of records, blocks and batches are never sampled.
- A series that is absent is unknown. It is not zero.
- If a service of another release has a state that the driver does not know, the driver counts it with the state `other`.
- If a stream has more partitions than `driver.metrics_partitions`, the series of partitions have an empty label `partition`
  and are sums over each topic (for seconds: the maximum).
- Each process also has the usual `process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds` and
  `process_start_time_seconds`.
- All scrapes, pages and commands share one snapshot of the driver's state, which is taken at most every half second.
"""

ALERTS_HEAD = """\
# Alerts

[alerts.yml](../../deploy/monitoring/alerts.yml) has alert rules for Prometheus. Copy the file, name it under `rule_files`, and
adapt thresholds and severities. [Metrics](../METRICS.md) shows how Prometheus finds Forebay's services.
`scripts/metrics_page.py` writes this page from the rules.

An alert with severity **critical** means that records wait, or can be lost, until a person acts. An alert with severity
**warning** can wait for working hours. The first step is often `forebay status`, which shows each problem with its cause and a
command.
"""


def metrics_of(module: ModuleType) -> list[Metric]:
    """Return the metrics that a module defines, in order."""
    return [value for value in vars(module).values() if isinstance(value, Metric)]


def _table(module: ModuleType) -> Iterator[str]:
    yield "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    for metric in metrics_of(module):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        values = f" ({', '.join(metric.values)})" if metric.values else ""
        yield f"| `{metric.name}` | {metric.kind} | {labels}{values} | {metric.help} |\n"


def page() -> str:
    """Return the whole page of metrics."""
    parts = [PAGE_HEAD]
    for title, (module, labels) in SERVICES.items():
        parts.append(f"\n## {title}\n\nAll series have the labels {labels}.\n\n")
        parts += _table(module)
    return "".join(parts)


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each alert rule with the name of its group."""
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield group["name"], rule


def alerts_page() -> str:
    """Return the whole page of alerts."""
    parts, last = [ALERTS_HEAD], ""
    for group, rule in rules():
        if group != last:
            parts.append(f"\n## {group.removeprefix('forebay-').capitalize()}\n")
            last = group
        notes = rule["annotations"]
        lasting = f", for {rule['for']}" if "for" in rule else ""
        parts.append(
            f"\n### {rule['alert']}\n\n"
            f"**{rule['labels']['severity']}**{lasting}: `{rule['expr']}`\n\n"
            f"{_linked(notes['meaning'])}\n\nFirst step: {_linked(notes['step'])}\n"
        )
    return "".join(parts)


def _linked(text: str) -> str:
    """Return ``text`` with links to the pages that it names."""
    return re.sub(r"docs/operations/([a-z-]+)\.md", r"[\1](\1.md)", text)


def problems() -> list[str]:
    """Return what is wrong with the generated pages; [] if they are what code and rules say."""
    return [
        f"{path.relative_to(ROOT)} is outdated: run .venv/bin/python scripts/metrics_page.py"
        for path, wanted in ((PAGE, page()), (ALERTS_PAGE, alerts_page()))
        if not path.is_file() or path.read_text(encoding="utf-8") != wanted
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    ALERTS_PAGE.write_text(alerts_page(), encoding="utf-8")
    sys.exit(0)
