"""A stream with WAL and journal on an HDFS with two NameNodes and Kerberos: fail-overs while its processes are killed.

Every offset is in exactly one completed batch. The seed is printed (tests/integration/test_random_crashes.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.conftest import missing
from tests.integration.test_random_crashes import crash_on, draw_seed
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.servers.kerberos import Kdc, require_kerberos
from tests.support.stores.hdfs import NAME_NODE, require_hdfs
from tests.support.stores.hdfs_pair import HdfsPair
from tests.support.stores.secured_hdfs import SecuredHdfs

pytestmark = [pytest.mark.kafka, pytest.mark.hdfs, pytest.mark.long, pytest.mark.timeout(1200)]

_ROUNDS = 2
#: tickets are over several times in the run
_TICKET_LIFE = "20s"


def test_fail_overs_and_kills_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1, INV-2, INV-3, INV-4: the active NameNode crashes, and hangs until it is fenced."""
    require_hdfs(missing)
    require_kerberos(missing)
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    with Kdc(tmp_path / "kdc") as kdc, SecuredHdfs(tmp_path / "hdfs", kdc) as server:
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        keytab = kdc.keytab("forebay", life=_TICKET_LIFE)
        server.make_home("forebay")
        root = f"{server.url}/user/forebay"
        with (
            Flow(kafka_broker.options, topic, rate=500) as flow,
            Cluster(
                tmp_path / "cluster", kafka_broker.options, [topic],
                wal={"url": f"{root}/wal"}, driver={"journal": f"{root}/journal"},
                storage={"hdfs": {**server.login("forebay", keytab), "request_timeout": "3s"}},
            ) as cluster,
        ):  # fmt: skip
            cluster.await_records(1)
            active, killed = NAME_NODE, crash_on(cluster, flow, draw, kills=1)
            for _ in range(_ROUNDS):
                active = server.fail_over(active)
                killed += crash_on(cluster, flow, draw, kills=1)
                active = hang_and_fence(server, active)
                killed += crash_on(cluster, flow, draw, kills=1)
            flow.stop()
            cluster.await_completed(flow.truth.ends())
            cluster.check(flow.truth)
            cluster.drain()
    print(f"{flow.records} records, {2 * _ROUNDS} fail-overs, {dict(killed)} killed: each record in exactly one batch")


def hang_and_fence(server: HdfsPair, active: str) -> str:
    """The other NameNode becomes active while ``active`` hangs, which is then killed and becomes its standby."""
    server.pause(active)
    return server.fail_over(active)
