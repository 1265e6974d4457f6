"""S3 servers of several makers: which ones the probe refuses, and kills of the stream's processes and of the server.

The contract of stores runs over them in tests/wal/storage/test_storage_contract.py.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from tests.integration.test_random_crashes import crash_on, draw_seed
from tests.integration.test_s3_crashes import on_s3
from tests.support.kafka.flow import Flow
from tests.support.stores import s3
from tests.support.stores.contract import require_server
from tests.support.stores.s3_variety import KINDS
from wal.storage import open_storage
from wal.storage.probe import probe

pytestmark = [pytest.mark.long, pytest.mark.variety]


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3Server]:
    kind = KINDS[request.param]
    require_server(kind.program(), "s3_variety", kind.bring)
    with s3.s3_server(tmp_path / "s3", kind=kind.server) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("served", [name for name, kind in KINDS.items() if not kind.usable], indirect=True)
def test_server_without_conditions_is_refused_and_nothing_is_left(
    served: s3.S3Server, request: pytest.FixtureRequest
) -> None:
    """INV-4: also if nothing is sent in parts."""
    kind = KINDS[request.node.callspec.params["served"]]
    draw = random.Random(1)
    for more in ({}, {"part_size": "3GiB"}):
        storage = open_storage(f"s3://{s3.BUCKET}/wal", s3.options(served.url, **more))
        with pytest.raises(UsageError, match=kind.refused):
            probe(storage, "s", lambda: draw.randrange(1 << 63))
        assert storage.list("") == []


@pytest.mark.parametrize(
    "served", [name for name, kind in KINDS.items() if kind.refused and kind.usable], indirect=True
)
def test_server_without_conditions_for_parts_is_refused_unless_nothing_is_sent_in_parts(
    served: s3.S3Server, request: pytest.FixtureRequest
) -> None:
    """INV-4: the error names the setting."""
    kind = KINDS[request.node.callspec.params["served"]]
    draw = random.Random(1)
    for more in ({}, kind.settings):
        storage = open_storage(f"s3://{s3.BUCKET}/wal", s3.options(served.url, **more))
        with contextlib.ExitStack() as stack:
            if not more:
                found = stack.enter_context(pytest.raises(UsageError, match=kind.refused))
            probe(storage, "s", lambda: draw.randrange(1 << 63))
        assert storage.list("") == []
    assert 'part_size = "3GiB"' in str(found.value)


@pytest.mark.kafka
@pytest.mark.parametrize("served", [name for name, kind in KINDS.items() if kind.usable], indirect=True)
def test_random_kills_of_processes_and_of_the_server_lose_and_repeat_nothing(
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    served: s3.S3Server,
    request: pytest.FixtureRequest,
) -> None:
    """INV-1, INV-2, INV-3, INV-4. A server that holds everything in memory is not killed."""
    kind = KINDS[request.node.callspec.params["served"]]
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    with (
        Flow(kafka_broker.options, topic, rate=500) as flow,
        on_s3(tmp_path, kafka_broker, topic, served.url, kind.settings, receiver={"store_timeout": "2m"}) as cluster,
    ):
        cluster.await_records(1)
        killed = crash_on(cluster, flow, draw, kills=3)
        if kind.durable:
            served.kill()
            before = flow.records
            cluster.wait(lambda: flow.records > before + 500, "records that wait in Kafka")
            served.start()
        killed += crash_on(cluster, flow, draw, kills=3)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        cluster.drain()
    print(f"{flow.records} records, {dict(killed)} killed: each record in exactly one batch")
