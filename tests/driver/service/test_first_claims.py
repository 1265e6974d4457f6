"""What a new driver awaits before it gives claims or deletes copies (INV-1)."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from driver import IngestContext
from driver.background.snapshot_copies import SnapshotCopies
from driver.journal.log.encoding import EncodedState
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from forebay.settings.schema import NO_WAL
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, Configure, ready
from wal.storage import open_storage


def test_no_copy_counts_as_stray_before_kafkas_commits_were_compared(
    settings: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: to the empty journal that stands in for a lost one every copy would be stray, and without a WAL is all there is."""
    s = settings()
    s = msgspec.structs.replace(s, wal=msgspec.structs.replace(s.wal, url=NO_WAL))
    asked, answer = threading.Event(), threading.Event()

    def committed(self: KafkaAdmin, group: str, partitions: Any) -> dict[TopicPartition, Committed]:
        asked.set()
        assert answer.wait(30)
        return {}

    monkeypatch.setattr(KafkaAdmin, "committed", committed)
    beat = m.AgentHeartbeatRequest(
        host="h", url="http://h:1", instance_id="i", acknowledged=0, blocks=1, used_bytes=1, free_bytes=1,
        old_blocks=("r1-10000000009-1",),
    )  # fmt: skip
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        assert asked.wait(30)
        client = Client(intake.url)
        registered = m.RegisterRequest(stream="s", receiver_id="r1", host="h", instance_id="i", release="test")
        client.post("/v1/receivers/register", registered, m.RegisterAnswer)
        assert not client.post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer).commands
        answer.set()
        ready(intake, s)
        (command,) = client.post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer).commands
        assert command.blocks == ("s/r1-10000000009-1",)


def test_no_claim_is_given_before_kafkas_commits_were_compared(
    settings: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 5: a receiver that claims commits the position first, which would overwrite the proof that the journal lost events."""
    s = settings()
    asked, answer = threading.Event(), threading.Event()

    def committed(self: KafkaAdmin, group: str, partitions: Any) -> dict[TopicPartition, Committed]:
        asked.set()
        assert answer.wait(30)
        return {}

    monkeypatch.setattr(KafkaAdmin, "committed", committed)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        assert asked.wait(30)
        receiver = PlayedReceiver(s, intake.url)
        with pytest.raises(UnreachableError, match="compared with the journal"):
            receiver.lookup(TopicPartition(s.kafka.topics[0], 0))
        answer.set()
        assert receiver.lookup(ready(intake, s)).known


def test_no_claim_is_given_before_a_snapshot_copy_is_beside_the_wal(
    settings: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted before there is one could not be found again if the journal were lost."""
    copying, go_on = threading.Event(), threading.Event()
    write = SnapshotCopies.write

    def slow(copies: SnapshotCopies, state: EncodedState) -> str:
        copying.set()
        assert go_on.wait(30)
        return write(copies, state)

    monkeypatch.setattr(SnapshotCopies, "write", slow)
    s = settings()
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        assert copying.wait(30)
        client = Client(intake.url)
        with pytest.raises(UnreachableError):
            client.post(
                "/v1/partitions/look", m.LookupRequest(receiver_id="r1", epoch=1, partitions=()), m.LookupAnswer
            )
        go_on.set()
        ready(intake, s)
        assert open_storage(s.wal.url).list("s/snapshots")
