"""When a driver refuses to lead: a fresh lease, a lost or damaged journal, a foreign WAL."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driver import IngestContext
from driver.background.discovery import LostJournal
from driver.journal.claims import Claim
from driver.journal.leadership.lease import LeaseHeld
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import opening as journal
from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.model.errors import CorruptionError, ForebayError, UnknownTopicError, UsageError
from forebay.model.identifiers import numbered
from forebay.model.values import TopicPartition
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, Configure, ready
from wal.storage import open_storage


def test_a_second_driver_refuses_while_the_first_ones_lease_is_fresh(settings: Configure) -> None:
    s = settings(lease_duration="3s")  # it may be renewed late
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
        with pytest.raises(LeaseHeld, match="--take-over"):
            IngestContext(None, s).foreach_batch(Collecting(1))


def test_a_driver_on_loopback_beside_drivers_of_other_hosts_logs_it(
    settings: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    with IngestContext(None, settings(urls=["http://a.invalid:7080"])) as intake:
        intake.foreach_batch(Collecting(1))
    assert caplog.text.count('set driver.url = "http://0.0.0.0:0"') == 1


def test_an_empty_journal_beside_a_wal_that_is_not_refuses_to_start(settings: Configure, tmp_path: Path) -> None:
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(Collecting(1))
    with pytest.raises(TimelineFound, match="journal was lost"):
        IngestContext(None, settings(journal=f"file://{tmp_path}/elsewhere")).foreach_batch(Collecting(1))
    assert not (tmp_path / "elsewhere").exists() or not list((tmp_path / "elsewhere").rglob("*.seg"))


def test_the_checkpoint_of_a_direct_stream_is_no_journal_of_an_intake(settings: Configure) -> None:
    """INV-5: its batches have no blocks, and would be completed unread."""
    s = settings()
    opened, state = journal.lead(open_storage(s.driver.journal), "s", "direct", 0, lambda: 0.0, lambda: 1)
    state.next_offsets["t/0"] = 5
    opened.snapshot()
    opened.close()
    with pytest.raises(
        TimelineFound, match="If the journal is of a stream without a WAL, or of a direct stream, choose another"
    ):
        IngestContext(None, s).foreach_batch(Collecting(1)).start()
    without_wal = msgspec.structs.replace(s, wal=msgspec.structs.replace(s.wal, url="none"))
    with pytest.raises(UsageError, match="checkpoint of direct stream 's'"):
        IngestContext(None, without_wal).foreach_batch(Collecting(1)).start()


def test_a_damaged_journal_refuses_to_start_with_the_place_and_the_way_out(settings: Configure, tmp_path: Path) -> None:
    """As a power loss leaves it where a file grows before its data are written: whether that group was answered is
    unknown (INV-5)."""
    s = settings()
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
    (segment,) = (tmp_path / "journal" / "s").glob("epoch-*/*.seg")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(CorruptionError, match=r"00000001\.seg is damaged at byte [0-9]+: .*`forebay journal rebuild`"):
        IngestContext(None, s).foreach_batch(Collecting(1)).start()


def test_a_second_journal_over_the_same_wal_refuses_to_lead(settings: Configure, tmp_path: Path) -> None:
    """Two that were both empty when they looked: the WAL belongs to the one that marked it."""
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(Collecting(1))
    (marker,) = (tmp_path / "wal" / "s").glob("lineage-*")
    marker.write_bytes(Claim(numbered(1, 1), "another", 1).encode())
    with pytest.raises(TimelineFound, match="belongs to another journal"):
        IngestContext(None, settings()).foreach_batch(Collecting(1))


def test_a_commit_of_ours_beyond_the_position_proves_that_the_journal_lost_events(settings: Configure) -> None:
    """Rule 5. Another program's commit is shown and ignored."""
    s = settings()
    tp = TopicPartition(s.kafka.topics[0], 0)
    admin = KafkaAdmin(s.kafka.options)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
    admin.publish(s.group, {tp: Committed(99, -1, "somebody")})
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
    admin.publish(s.group, {tp: Committed(99, -1, "forebay:1:1")})
    context = IngestContext(None, s).foreach_batch(Collecting(1))
    with pytest.raises(LostJournal, match="99"):
        context.await_termination(30)


def test_missing_topic_or_refused_group_is_reported_and_does_not_end_the_driver(
    settings: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    s = settings()
    found, really = threading.Event(), KafkaAdmin.starting_offsets

    def too_new(self: KafkaAdmin, *args: Any) -> Any:
        if not found.is_set():
            found.set()
            raise UnknownTopicError("offsets: unknown topic")
        return really(self, *args)

    def refused(self: KafkaAdmin, *args: Any) -> Any:
        raise ForebayError("the group has members")

    monkeypatch.setattr(KafkaAdmin, "starting_offsets", too_new)
    monkeypatch.setattr(KafkaAdmin, "publish", refused)
    job = Collecting(5)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        PlayedReceiver(s, intake.url).take_in(ready(intake, s), 5)
        assert job.enough.wait(30)
        for _ in range(1000):
            if "has members" in caplog.text:
                break
            threading.Event().wait(0.02)
    assert caplog.text.count("could not be published") == 1
