"""Which losses a direct stream finds, and the requests that accept them: decisions on values (INV-5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from direct.checkpoint.losses import (
    Held,
    Loss,
    compared,
    held_by_kafka,
    journal_losses,
    leader_epochs,
    losses_at_positions,
    losses_error,
    losses_of_batch,
    losses_of_state,
    lost_of,
    points_of,
    points_of_state,
)
from driver.journal.events import SpansAllocated, SpansBegun, SpansEnded, SpansSkipped
from driver.journal.transitions import apply
from driver.tracker.requests import EndSpans, SkipSpans
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.spans import OffsetRange, is_inside, parse_span, without
from forebay.messages import AcceptLossRequest
from forebay.model.errors import OutOfRangeError, RangeNotHeldError, UnknownTopicError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from tests.support.state.checkpoints import BATCH, begun

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("held", "lost"),
    [
        (Held("id", 0, 100), []),
        (Held("id", 10, 20), []),
        (Held("id", 12, 100), [(10, 12)]),
        (Held("id", 0, 15), [(15, 20)]),
        (Held("id", 12, 15), [(10, 12), (15, 20)]),
        (Held("id", 50, 100), [(10, 20)]),
        (Held("other", 0, 100), [(10, 20)]),
        (Held("id", 15, 12), [(10, 15), (15, 20)]),  # cut back between the two questions
        (Held("", 0, 100), []),  # a broker that can't tell
        (Held("id", 0, 100, 7, {3: 15}), [(15, 20)]),
        (Held("id", 0, 100, 7, {3: 20}), []),
        (Held("id", 0, 100, 7, {2: 12}), []),  # of a range that another leader had
        (Held("id", 0, 17, 7, {3: 18}), [(17, 20)]),
        (None, [(10, 20)]),
    ],
)
def test_lost_parts_of_a_range_are_exact(held: Held | None, lost: list[tuple[int, int]]) -> None:
    span = OffsetRange("t", 0, 10, 20, "id", leader_epoch=3)
    found = lost_of(span, {} if held is None else {TP: held})
    assert [(part.from_offset, part.until_offset) for part in found] == lost
    rest = without([span], found)
    assert sum(part.size for part in (*found, *rest)) == span.size
    assert {(part.topic_id, part.leader_epoch) for part in (*found, *rest)} == {("id", 3)}
    assert [loss.label for loss in losses_of_batch(7, [(span, 1)], {} if held is None else {TP: held})] == list(
        map(str, found)
    )


@pytest.mark.parametrize(
    ("held", "kind", "label", "goes_on_at"),
    [
        (Held("id", 0, 10), None, "", -1),
        (Held("id", 10, 10), None, "", -1),
        (Held("id", 15, 40), "gap", "t/0[10, 15)", 15),
        (Held("id", 0, 7), "cut-back", "t/0", 7),
        (Held("id", 0, 40, 7, {3: 6}), "cut-back", "t/0", 6),
        (Held("id", 0, 7, 7, {3: 6}), "cut-back", "t/0", 6),
        (Held("id", 0, 40, 7, {3: 10}), None, "", -1),
        (Held("id", 0, 40, 7, {2: 6}), None, "", -1),
        (Held("other", 3, 40, 7, {3: 6}), "created-again", "t/0", 3),
        (Held("other", 3, 40), "created-again", "t/0", 3),
        (None, "gone", "t/0", -1),
    ],
)
def test_losses_at_a_position_are_classified(held: Held | None, kind: str | None, label: str, goes_on_at: int) -> None:
    found = losses_at_positions({TP: 10}, {TP: "id"}, {} if held is None else {TP: held}, leader_epochs={TP: 3})
    assert [(loss.kind, loss.label, loss.goes_on_at) for loss in found] == ([(kind, label, goes_on_at)] if kind else [])


def test_topic_without_a_known_id_counts_as_unchanged() -> None:
    assert losses_at_positions({TP: 10}, {TP: ""}, {TP: Held("id", 0, 20)}) == []
    assert (
        lost_of(OffsetRange("t", 0, 10, 20), {TP: Held("id", 0, 20)}) == lost_of(OffsetRange("t", 0, 10, 10), {}) == []
    )


class Brokers:
    """As ``KafkaAdmin``, of brokers that tell these ids, and hold offsets 3 to 9 of every partition but those ``gone``."""

    def __init__(self, topic_id: str, gone: bool = False) -> None:
        self._id = topic_id
        self._gone = gone
        self.compared: list[tuple[TopicPartition, LogPoint]] = []

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, self._id)

    def places(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        if self._gone:
            raise UnknownTopicError("partition t/0 was deleted")
        assert set(wanted.values()) <= {"earliest"}
        return dict.fromkeys(wanted, 3)

    def log_ends(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, LogPoint]:
        return dict.fromkeys(wanted, LogPoint(9, 7))

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        """Every leader before the present one had other records from offset 5 on."""
        self.compared += points.items()
        return {tp: 5 for tp, point in points.items() if point.offset > 5}


@pytest.mark.parametrize(
    ("now", "before", "there", "held"),
    [
        ("id", "id", True, "id"),
        ("other", "id", True, "other"),
        ("id", "id", False, "id"),  # it has no leader at the moment
        ("id", "", False, "id"),
        ("other", "id", False, None),  # another topic, which has no such partition
        ("", "id", False, None),
        ("", "", False, None),
        ("", "", True, ""),  # a broker that can't tell
    ],
)
def test_partition_counts_as_deleted_only_if_brokers_do_not_know_it(
    now: str, before: str, there: bool, held: str | None
) -> None:
    """INV-5: metadata may omit a partition without a leader."""
    found: Any = held_by_kafka(Brokers(now), {TP: before}, {TP} if there else set())  # type: ignore[arg-type]
    assert found == ({} if held is None else {TP: Held(held, 3, 9, 7)})


def test_unknown_answer_of_brokers_is_asked_again() -> None:
    """INV-5: the topic may be another one with that name, or about to be deleted."""
    with pytest.raises(UnreachableError, match="no broker returns the id of topic t, which had one before"):
        held_by_kafka(Brokers(""), {TP: "id"}, {TP})  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="t/0 was deleted"):
        held_by_kafka(Brokers("id", gone=True), {TP: "id"}, {TP})  # type: ignore[arg-type]


def test_only_points_of_other_leaders_are_compared_with_the_log() -> None:
    """INV-5: the highest offset of each leader, since a log that has it has the ones below it."""
    other = TopicPartition("u", 0)
    held = {TP: Held("id", 3, 9, 7), other: Held("new", 3, 9, 7)}
    spans = [
        OffsetRange("t", 0, 2, end, "id", leader_epoch=epoch)
        for end, epoch in ((4, 3), (8, 3), (5, 4), (9, 7), (9, -1))
    ]
    ids = {TP: "id", other: "old"}
    points = points_of([*spans, OffsetRange("u", 0, 2, 8, "old", leader_epoch=3)], ids, {TP: 9, other: 9}, {TP: 6})
    brokers = Brokers("id")
    found = compared(brokers, held, ids, points)  # type: ignore[arg-type]
    assert sorted(point for _, point in brokers.compared) == [LogPoint(5, 4), LogPoint(8, 3), LogPoint(9, 6)]
    assert {tp for tp, _ in brokers.compared} == {TP}
    assert found == {TP: Held("id", 3, 9, 7, {3: 5, 6: 5}), other: held[other]}


def test_position_has_the_leader_epoch_of_the_newest_batch() -> None:
    """A journal of an older release has none."""
    state = begun()
    assert leader_epochs(state) == points_of_state(state) == {}
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 10, 20, "id", leader_epoch=3),)))
    assert leader_epochs(state) == {TP: 3} and points_of_state(state) == {TP: {3: 20}}
    apply(state, SpansSkipped((OffsetRange("t", 0, 20, 25),), 4, "out-of-range"))
    assert leader_epochs(state) == {} and points_of_state(state) == {TP: {3: 20}}
    apply(state, SpansAllocated(BATCH + 1, 2, 3, (OffsetRange("t", 0, 25, 30, "id", leader_epoch=4),)))
    assert leader_epochs(state) == {TP: 4}
    apply(state, SpansEnded(("t/0",), 5, "cut-back"))
    apply(state, SpansBegun({"t/0": 15}, {"t": "id"}, 5, "cut-back"))
    assert leader_epochs(state) == {} and points_of_state(state) == {TP: {3: 20, 4: 30}}


def test_accepted_loss_of_a_batch_is_not_reported_again() -> None:
    state = begun()
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 10, 20, "id"),)))
    assert [loss.label for loss in losses_of_state(state, {TP: Held("id", 15, 40)})] == ["t/0[10, 15)"]
    state.batches[BATCH].lost = ("t/0[10, 15)",)
    assert losses_of_state(state, {TP: Held("id", 15, 40)}) == []
    assert [loss.label for loss in losses_of_state(state, {TP: Held("id", 17, 40)})] == ["t/0[15, 17)"]


def test_accepted_losses_become_requests_by_kind() -> None:
    asked: list[Any] = []
    whole, gap = (
        losses_at_positions({TP: 10}, {TP: "id"}, held)[0]
        for held in ({TP: Held("new", 3, 9)}, {TP: Held("id", 15, 40)})
    )
    journal_losses(asked.append, [Loss("batch", "t/0[5, 8)", "", 7), gap, whole, Loss("gone", "u/1", "")], 99, "ann")
    assert asked == [
        AcceptLossRequest(batch_id=7, ranges=("t/0[5, 8)",), cause="ann"),
        SkipSpans((OffsetRange("t", 0, 10, 15),), 99, "out-of-range, ann"),
        EndSpans(("t/0",), 99, "created-again, ann", {"t/0": 3}, {"t": "new"}),
        EndSpans(("u/1",), 99, "gone, ann", {}, {}),
    ]


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        (("gone", "gone"), UnknownTopicError),
        (("gap",), OutOfRangeError),
        (("gap", "gone"), RangeNotHeldError),
        (("batch",), RangeNotHeldError),
    ],
)
def test_error_class_of_losses_depends_on_their_kinds(kinds: tuple[Any, ...], error: type[Exception]) -> None:
    found = losses_error([Loss(kind, "t/0", f"words of {kind}") for kind in kinds], "do this")
    assert type(found) is error
    assert str(found) == f"{'; '.join(f'words of {kind}' for kind in kinds)}; do this"


def test_label_of_a_range_is_parsed_and_other_text_is_refused() -> None:
    span = OffsetRange("a.b-c_d", 3, 5, 9)
    assert parse_span(str(span)) == parse_span("a.b-c_d/3[5,9)") == span
    assert is_inside("t/0[5, 9)", [(OffsetRange("t", 0, 0, 7), 1), (OffsetRange("t", 0, 7, 20), 1)])
    for label in ("t/0[5, 21)", "t/1[5, 9)", "t/0[5, 5)"):
        assert not is_inside(label, [(OffsetRange("t", 0, 0, 20), 1)])
    for text in ("t/0", "t/0[5, 9]", "t/0[9, 5)", "../t/0[1, 2)", "t/0[1, 2) life 2"):
        with pytest.raises(UsageError):
            parse_span(text)
