"""Faults of partitions, and topics that were created again: reported, never skipped (rule 8)."""

from __future__ import annotations

from forebay.model.columns import PartitionFault
from forebay.model.units import Duration
from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import P0, P1, Stage, columns, view


def test_fault_pauses_its_partition_alone_and_is_reported_when_all_before_it_is_accepted() -> None:
    """The report names the durable position."""
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3))
    stage.tell(inp.Polled([PartitionFault(P0, starts[P0].generation, "out-of-range", "x")]))
    assert stage.one(act.Pause).partitions == (P0,)
    stage.seal_and_store()
    stage.none(act.Inspect)
    stage.answer()
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 10, 20, ""))
    sent = stage.one(act.SendFault)
    assert (sent.message.kind, sent.message.position, sent.message.low) == ("out-of-range", 3, 10)
    stage.poll(starts[P1], [0])
    stage.seal_and_store()
    stage.answer()  # the other one goes on
    stage.tell(inp.FaultAnswered(sent.request, False, "`forebay offsets accept-gap t/0 3 10` goes on"))
    stage.wait(1.0)
    stage.none(act.Inspect)
    stage.wait(4.0)
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 10, 20, ""))
    stage.tell(inp.FaultAnswered(stage.one(act.SendFault).request, True, "recorded"))
    (again,) = stage.claim({P0: view(P0, 10, 20)})
    assert again.offset == 10


def test_out_of_range_error_that_no_longer_holds_is_not_reported_to_the_driver() -> None:
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "out-of-range", "x")]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 9, ""))
    stage.none(act.SendFault)
    stage.wait(0.5)
    (again,) = stage.claim({P0: view(P0, 5, 20)})
    assert again.offset == 5


def test_report_of_truncated_and_regrown_log_names_where_it_was_truncated() -> None:
    """INV-5: records between the truncation and the position are new. Otherwise they would be skipped."""
    stage = Stage()
    start = stage.own(P0, position=100)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "truncated", "cut", 80)]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 120, ""))
    sent = stage.one(act.SendFault).message
    assert (sent.kind, sent.position, sent.high) == ("truncated", 100, 80)


def test_fault_after_new_claim_ignores_where_the_log_was_truncated_before() -> None:
    """INV-5: the driver would take records that Kafka aged out for another truncation, and begin an incarnation below them."""
    stage = Stage()
    start = stage.own(P0, position=100)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "truncated", "cut", 80)]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 120, ""))
    stage.tell(inp.FaultAnswered(stage.one(act.SendFault).request, True, "recorded"))
    (again,) = stage.claim({P0: view(P0, 90, 20, incarnation=2)})
    stage.poll(again, [150])
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 150, 200, ""))
    reported = stage.one(act.SendFault).message
    assert (reported.kind, reported.position, reported.high) == ("out-of-range", 90, 200)


def test_corrupt_batch_is_reported_and_never_skipped() -> None:
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "corrupt", "CRC"), columns(P0, start.generation, [9])]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 9, ""))
    assert stage.one(act.SendFault).message.kind == "corrupt"
    stage.wait(1.0)
    assert stage.sealed() == []


def test_topic_ids_are_read_after_the_last_poll_of_a_block_and_before_its_report() -> None:
    stage = Stage()
    start = stage.own(P0, topic_id="A")[P0]
    stage.poll(start, range(3)).wait(1.0)
    check = stage.one(act.CheckTopicIds)
    (pending,) = stage.sealed()
    stage.store(pending)
    stage.none(act.Report)
    stage.poll(start, [3])
    stage.seal_and_store()
    stage.tell(inp.TopicIdsRead(check.request, {"t": "A"}))
    assert [block.meta.sequence for block in stage.one(act.Report).message.blocks] == [1]  # the second was polled later
    stage.tell(inp.BrokerFailed(stage.one(act.CheckTopicIds).request, "no answer"))
    assert "no answer" in stage.machine.detail, "the status shows why blocks wait (INV-5)"
    assert stage.machine.state == "waiting", "and the driver makes a problem of it, if it lasts"
    stage.wait(0.5)
    stage.one(act.CheckTopicIds)


def test_a_broker_that_cannot_tell_topic_ids_is_not_asked() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    stage.seal_and_store()
    stage.none(act.CheckTopicIds)
    stage.one(act.Report)


def test_blocks_of_a_recreated_topic_are_never_reported() -> None:
    """Their records may be of either topic, so the blocks stay orphans (rule 8)."""
    other = type(P0)("u", 0)
    stage = Stage().register()
    stage.tell(inp.Assigned((P0, other)))
    starts = {s.tp: s for s in stage.claim({P0: view(P0, topic_id="A"), other: view(other, topic_id="U")})}
    stage.poll(starts[P0], range(3)).poll(starts[other], range(2))
    stage.seal_and_store()
    stage.tell(inp.TopicIdsRead(stage.one(act.CheckTopicIds).request, {"t": "B", "u": "U"}))
    stage.none(act.Report)
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 3, "B"))
    fault = stage.one(act.SendFault).message
    assert (fault.kind, fault.position, fault.topic_id) == ("recreated", 0, "B")
    stage.wait(0.5)
    (again,) = stage.claim({other: view(other, 0, 30, topic_id="U")})
    assert (again.tp, again.offset) == (other, 2)  # cut again from memory under a new token


def test_blocks_whose_topic_ids_were_read_are_marked_checked() -> None:
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0, topic_id="id")[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.tell(inp.TopicIdsRead(stage.one(act.CheckTopicIds).request, {"t": "id"}))
    assert stage.one(act.TopicsChecked).sequences == (1,)


def test_blocks_of_recreated_topic_are_not_marked_checked() -> None:
    """They may hold records of the new topic under the old incarnation."""
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0, topic_id="id")[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.tell(inp.TopicIdsRead(stage.one(act.CheckTopicIds).request, {"t": "other"}))
    stage.none(act.TopicsChecked)
