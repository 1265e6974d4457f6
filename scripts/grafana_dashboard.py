"""Writes deploy/monitoring/grafana.json, the Grafana dashboard, from the rows and panels below."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "deploy" / "monitoring" / "grafana.json"

#: columns of Grafana's grid, and rows of a panel's height in it
COLUMNS, STAT_HEIGHT, GRAPH_HEIGHT = 24, 4, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of one row: ``queries``: expression → legend. ``$S`` in an expression is the selection of the stream."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    about: str = ""
    kind: str = "timeseries"


def quantiles(metric: str) -> dict[str, str]:
    """Return the queries for the median and the slowest 1 % of a histogram."""
    rate = f"sum by (le) (rate({metric}_bucket{{$S}}[$__rate_interval]))"
    return {f"histogram_quantile(0.5, {rate})": "median", f"histogram_quantile(0.99, {rate})": "99 %"}


def per_second(metric: str, *labels: str) -> dict[str, str]:
    """Return the query for the events per second of a counter, by ``labels``."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return {f"sum by ({', '.join(labels)}) (rate({metric}{{$S}}[$__rate_interval]))": legend}


def stat(title: str, query: str, unit: str = "short", about: str = "") -> Panel:
    return Panel(title, {query: ""}, unit, about, "stat")


ROWS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        stat("Problems", "sum(forebay_problems{$S})", about="`forebay status` shows each problem and its command."),
        stat("Behind Kafka", "sum(forebay_partition_lag_records{$S})", about="Records that are not taken in."),
        stat(
            "Oldest record",
            "max(forebay_partition_lag_seconds{$S})",
            "s",
            "Age of the oldest record in no completed batch.",
        ),
        stat("Records in", "sum(rate(forebay_taken_records_total{$S}[$__rate_interval]))", "cps"),
        stat("Records completed", "sum(rate(forebay_completed_records_total{$S}[$__rate_interval]))", "cps"),
        stat("Receivers active", 'sum(forebay_receivers{$S, state="active"})'),
    ),
    "Records": (
        Panel(
            "Records per second",
            {
                "sum(rate(forebay_taken_records_total{$S}[$__rate_interval]))": "taken in",
                "sum(rate(forebay_completed_records_total{$S}[$__rate_interval]))": "completed",
            },
            "cps",
        ),
        Panel("Bytes per second", {"sum(rate(forebay_taken_bytes_total{$S}[$__rate_interval]))": "taken in"}, "Bps"),
        Panel("Records behind Kafka", {"sum by (topic) (forebay_partition_lag_records{$S})": "{{topic}}"}),
        Panel("Age of the oldest record", {"max by (topic) (forebay_partition_lag_seconds{$S})": "{{topic}}"}, "s"),
        Panel(
            "Records that wait",
            {"sum(forebay_waiting_records{$S})": "in no batch", "sum(forebay_queued_records{$S})": "in batches"},
        ),
        Panel("Kafka to completed", quantiles("forebay_batch_end_to_end_seconds"), "s"),
    ),
    "Batches": (
        Panel("Scheduling delay", quantiles("forebay_batch_scheduling_delay_seconds"), "s"),
        Panel(
            "Processing time",
            {
                **quantiles("forebay_batch_processing_seconds"),
                "max(forebay_batch_interval_seconds{$S})": "batch interval",
            },
            "s",
            "If batches take longer than the interval, the stream falls behind.",
        ),
        Panel("Batches by state", {"sum by (state) (forebay_batches{$S})": "{{state}}"}),
        Panel(
            "Failed attempts",
            {"sum by (kind) (increase(forebay_batch_failures_total{$S}[$__rate_interval]))": "{{kind}}"},
        ),
        Panel(
            "Ranges read, by tier",
            per_second("forebay_tier_reads_total", "tier", "outcome"),
            "cps",
        ),
        Panel("Learned rate", {"max(forebay_learned_records_per_second{$S})": "records per second"}, "cps"),
    ),
    "Receivers": (
        Panel("Records per second", per_second("forebay_receiver_records_total", "receiver"), "cps"),
        Panel("Seal to durable", quantiles("forebay_receiver_store_seconds"), "s"),
        Panel("Sync of the WAL", quantiles("forebay_receiver_sync_seconds"), "s"),
        Panel("Report to the driver", quantiles("forebay_receiver_report_seconds"), "s"),
        Panel(
            "Memory of records, share of the maximum",
            {"forebay_receiver_buffered_bytes{$S} / forebay_receiver_memory_bytes{$S}": "{{receiver}}"},
            "percentunit",
        ),
        Panel(
            "Failures",
            {"sum by (kind) (increase(forebay_receiver_failures_total{$S}[$__rate_interval]))": "{{kind}}"},
        ),
    ),
    "Driver and journal": (
        Panel("Wait for a decision", quantiles("forebay_driver_decision_wait_seconds"), "s"),
        Panel(
            "Longest wait of the last minute", {"max(forebay_driver_decision_longest_wait_seconds{$S})": "longest"}, "s"
        ),
        Panel("Sync of the journal", quantiles("forebay_journal_sync_seconds"), "s"),
        Panel(
            "Journal",
            {"sum(forebay_journal_bytes{$S})": "bytes", "min(forebay_journal_free_bytes{$S})": "free"},
            "bytes",
        ),
        Panel("Requests that wait", {"sum(forebay_driver_queued_requests{$S})": "requests"}),
        Panel("Problems", {"sum by (kind) (forebay_problems{$S}) > 0": "{{kind}}"}),
    ),
    "Storage and hosts": (
        Panel(
            "WAL",
            {"sum(forebay_wal_bytes{$S})": "all", "sum(forebay_wal_held_by_cursors_bytes{$S})": "for cursors"},
            "bytes",
        ),
        Panel(
            "Block folders, share of the quota",
            {"forebay_agent_used_bytes{$S} / forebay_agent_quota_bytes{$S}": "{{host}}"},
            "percentunit",
        ),
        Panel(
            "Blocks served by agents",
            per_second("forebay_agent_served_blocks_total", "outcome"),
            "cps",
        ),
        Panel("Memory of processes", {"process_resident_memory_bytes{$S}": "{{service}} {{instance}}"}, "bytes"),
        Panel("CPU of processes", per_second("process_cpu_seconds_total", "service", "instance"), "percentunit"),
        Panel("Releases", {"count by (version) (forebay_build_info{$S})": "{{version}}"}),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the whole dashboard."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": _place(0, y, COLUMNS, 1), "panels": []}
        )
        y += 1
        is_stat = row[0].kind == "stat"
        across = len(row) if is_stat else 3
        width, height = COLUMNS // across, STAT_HEIGHT if is_stat else GRAPH_HEIGHT
        for number, panel in enumerate(row):
            place = _place(number % across * width, y + number // across * height, width, height)
            panels.append(_panel(panel, len(panels) + 1, place))
        y += -(-len(row) // across) * height
    return {
        "title": "Forebay",
        "uid": "forebay",
        "tags": ["forebay", "kafka", "spark"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": expression.replace("$S", 'stream="$stream"'),
            "legendFormat": legend,
            "range": panel.kind != "stat",
            "instant": panel.kind == "stat",
        }
        for index, (expression, legend) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
    }


def _variables() -> list[dict[str, Any]]:
    streams = "label_values(forebay_build_info, stream)"
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "stream",
            "label": "Stream",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": streams, "refId": "streams"},
            "definition": streams,
            "refresh": 2,
            "sort": 1,
        },
    ]


def text() -> str:
    """Return the whole file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def problems() -> list[str]:
    """Return what is wrong with the generated file; [] if it is what this script says."""
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text():
        return []
    return [f"{FILE.relative_to(ROOT)} is outdated: run .venv/bin/python scripts/grafana_dashboard.py"]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.exit(0)
