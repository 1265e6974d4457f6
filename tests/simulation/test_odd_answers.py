"""Odd answers of HTTP, as the simulation draws them: the product's client takes none for a driver's decision."""

from __future__ import annotations

import msgspec
import pytest

from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, TurnedAwayError, UnreachableError
from tests.simulation.http_answers import CUTS, OTHER_ANSWERS, HttpAnswer, SimulatedClient

ANSWERS: tuple[m.Message, ...] = (
    m.RegisterAnswer(epoch=1, driver_epoch=2, timeline=1),
    m.HeartbeatAnswer(driver_epoch=2),
    m.LookupAnswer(partitions=()),
    m.ClaimAnswer(claims=()),
    m.FaultAnswer(proceed=True, message=""),
    m.ReportAnswer(results=()),
    m.AgentHeartbeatAnswer(driver_epoch=2),
)
each = pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)


def post(answer: HttpAnswer | None, kind: type[msgspec.Struct]) -> msgspec.Struct:
    return SimulatedClient(lambda path, message: answer).post("/v1/path", m.Done(), kind)


@each
def test_answer_of_another_program_is_no_decision(answer: m.Message) -> None:
    """INV-4: a receiver that took one for its driver's refusal would end as superseded."""
    for other in OTHER_ANSWERS:
        with pytest.raises((UnreachableError, RefusedError)) as raised:
            post(other, type(answer))
        assert not isinstance(raised.value, FencedError | TurnedAwayError), other


@each
def test_answer_that_is_cut_off_is_no_answer(answer: m.Message) -> None:
    assert post(HttpAnswer.of(answer), type(answer)) == answer
    for at in range(CUTS):
        with pytest.raises(UnreachableError):
            post(HttpAnswer.of(answer).cut(at), type(answer))
    with pytest.raises(UnreachableError, match="timed out"):
        post(None, type(answer))


def test_refusal_keeps_its_meaning() -> None:
    with pytest.raises(FencedError, match="epoch 7"):
        post(HttpAnswer.of(FencedError("epoch 7")), m.Done)
    cut = HttpAnswer.of(FencedError("epoch 7"))
    for at in range(CUTS):
        with pytest.raises((UnreachableError, RefusedError)) as raised:
            post(cut.cut(at), m.Done)
        assert not isinstance(raised.value, FencedError)
