"""Keys change while real processes run: one batch has blocks of the old and of the new key, and no output shows a key."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.processes.witness import incarnations_seen
from wal.blocks import decode_meta
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import scan_segment

pytestmark = pytest.mark.kafka

OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (7, 9))


def test_blocks_of_two_keys_are_read_in_one_batch(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    keys = tmp_path / "keys"
    keys.write_text(f"old {OLD}\n")
    keys.chmod(0o600)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1,
            wal={"key_file": str(keys), "compression": "zstd", "retention": "1h"}, driver={"max_queued_batches": 1},
            receiver={"local_copies": False},
        ) as cluster,
    ):  # fmt: skip
        cluster.await_records(100)

        def waiting(key_id: str) -> bool:
            state = cluster.state()
            return any(state.blocks[block_id].meta.key_id == key_id for block_id in state.waiting)

        # the next key is put behind the current one everywhere before any receiver writes with it
        keys.write_text(f"old {OLD}\nnew {NEW}\n")
        cluster.hold_a_job()
        cluster.wait(lambda: waiting("old"), "blocks of the old key behind a held job")
        keys.write_text(f"new {NEW}\nold {OLD}\n")
        cluster.kill9("r1")
        cluster.restart("r1")
        cluster.wait(lambda: waiting("new"), "blocks of the new key behind a held job")
        assert waiting("old")
        (tmp_path / "hold").unlink()
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)

        used: dict[tuple[int, int], str | None] = {}
        for path in cluster.wal_storage.list("stream/blocks"):
            for item in scan_segment(cluster.wal_storage, path):
                assert isinstance(item, Frame), item
                if item.header.kind == FrameKind.BLOCK:
                    meta = decode_meta(item.metadata, path, item.offset)
                    used.update({(r.partition, r.from_offset): meta.key_id for r in meta.ranges})
        kinds = [
            {used[partition, begin] for _, partition, _, begin, _ in incarnations_seen(path)}
            for path in cluster.seen.glob("*.arrow")
        ]
        assert {"old", "new"} in kinds and {"old"} in kinds
        verified = cluster.command("wal", "verify")  # needs no key
        assert verified.returncode == 0, verified.stdout + verified.stderr
        shown = "".join(cluster.log(name) for name in cluster.names) + verified.stdout + verified.stderr
        assert OLD not in shown and NEW not in shown
