"""Proxies between Forebay and the S3 server that repeat, reorder, delay and lose requests: multipart uploads and random kills.

The contract of stores runs behind them in tests/wal/storage/test_storage_contract.py.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.integration.test_random_crashes import crash_on, draw_seed
from tests.integration.test_s3_crashes import on_s3
from tests.support.kafka.flow import Flow
from tests.support.state.counting import check_counts
from tests.support.stores.contract import STORES
from tests.support.stores.proxies import PROXIES

pytestmark = [pytest.mark.long, pytest.mark.variety]


@pytest.mark.parametrize("name", PROXIES)
def test_one_of_several_uploads_in_parts_creates_the_object_and_its_writer_learns_it(name: str, tmp_path: Path) -> None:
    """INV-4: a proxy's own repetition of an upload's end is not taken for another writer's object."""
    with STORES[f"s3-behind-{name}"](tmp_path / "s3") as store:
        store.begin()
        clients = [store.open(part_size="5MiB", retry_timeout="60s") for _ in range(3)]
        wholes = [random.Random(number).randbytes(11 << 20) for number in range(3)]
        for round_ in range(2):
            path = f"epochs/{round_}"
            won: list[int] = []
            failures: list[BaseException] = []
            together = threading.Barrier(3)

            def create(
                number: int,
                path: str = path,
                won: list[int] = won,
                failures: list[BaseException] = failures,
                together: threading.Barrier = together,
            ) -> None:
                together.wait(30)
                try:
                    clients[number].put_new(path, wholes[number])
                    won.append(number)
                except FileExistsError:
                    return
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=create, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            assert len(won) == 1
            assert store.open().read(path) == wholes[won[0]]
        clients[0].replace("epochs/0", wholes[1][::-1])
        assert clients[1].read("epochs/0") == wholes[1][::-1]


@pytest.mark.kafka
@pytest.mark.parametrize("name", PROXIES)
def test_random_kills_behind_the_proxy_lose_and_repeat_nothing(
    name: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3, INV-4: WAL and journal are behind the proxy."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    with STORES[f"s3-behind-{name}"](tmp_path / "s3") as store:
        assert store.proxy is not None
        with (
            Flow(kafka_broker.options, topic, rate=500) as flow,
            on_s3(tmp_path, kafka_broker, topic, store.proxy.url) as cluster,
        ):
            cluster.await_records(1)
            killed = crash_on(cluster, flow, draw, kills=3)
            store.crash()
            killed += crash_on(cluster, flow, draw, kills=3)
            flow.stop()
            cluster.await_completed(flow.truth.ends())
            cluster.check(flow.truth)
            check_counts(cluster, flow.truth)
            cluster.drain()
    print(f"behind {name}: {flow.records} records, {dict(killed)} killed, the server killed once")
