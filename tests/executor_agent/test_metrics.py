"""The agent's metrics: its folder, and what its routes serve and store."""

from __future__ import annotations

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

import executor_agent.metrics as d
from executor_agent.main import Agent
from forebay.metrics.definition import Metric
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import local_path

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def values(url: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(urllib3.request("GET", f"{url}/metrics").data.decode()):
        for sample in family.samples:
            more = [value for name, value in sorted(sample.labels.items()) if name not in ("stream", "host")]
            found[" ".join([sample.name, *more])] = sample.value
    return found


def test_agent_counts_the_blocks_that_it_serves_and_stores(agent: Agent, stored: Stored) -> None:
    reference = stored.add(*block({("a", 0): filler(100)}))
    data = local_path(stored.blocks_directory, "s", reference.id).read_bytes()
    url = f"{agent.url}/v1/blocks/s/{reference.id}"
    assert urllib3.request("GET", url).status == 200
    assert urllib3.request("GET", url, headers={"range": "bytes=0-9"}).status == 206
    assert urllib3.request("GET", f"{agent.url}/v1/blocks/s/r9-1-1").status == 404
    assert urllib3.request("PUT", f"{url[:-1]}7", body=b"no block").status == 400
    assert urllib3.request("PUT", url, body=data).status == 200
    found = values(agent.url)
    for outcome in ("whole", "range", "absent"):
        assert found[f"forebay_agent_served_blocks_total {outcome}"] == 1
    assert found["forebay_agent_served_bytes_total"] == len(data) + 10
    assert (found["forebay_agent_kept_copies_total"], found["forebay_agent_kept_bytes_total"]) == (1, len(data))
    assert found["forebay_agent_driver_reachable"] == 0
    assert found["forebay_agent_quota_bytes"] > 0 and found["forebay_agent_free_bytes"] > 0


def test_each_metric_of_the_module_is_counted_or_read() -> None:
    defined = {value for value in vars(d).values() if isinstance(value, Metric)}
    assert defined == {*d.COUNTED, *d.READ}
