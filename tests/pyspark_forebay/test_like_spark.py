"""The same queries with Spark's own Kafka source, in a separate Spark, and with ``format("forebay")``: equal results."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.spark import queries
from tests.support.spark.compared import (
    BATCHES,
    COMPACTED,
    DIFFERENCES,
    Batch,
    Change,
    Side,
    Stream,
    Topics,
    kind_of,
    lay_out,
)  # fmt: skip
from tests.support.spark.compared_streams import STREAMS
from tests.support.spark.jvm_spark import SparkProcess

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Answer = dict[str, Any]
_numbers = itertools.count(1)


class Both:
    """Runs a query with both sources at the same time."""

    def __init__(self, jvm: SparkProcess, spark: Any, servers: str, topics: Topics) -> None:
        self._jvm, self._spark, self._servers, self._topics = jvm, spark, servers, topics
        self._threads = ThreadPoolExecutor(1)

    def ask(self, question: dict[str, Any], folder: Path | None = None) -> tuple[Answer, Answer]:
        """What Spark's source and ours give; ``folder``: for a checkpoint of each."""
        quick = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "100"}
        options = {"kafka.bootstrap.servers": self._servers, **quick, **question["options"]}
        question = {**question, "options": {name: self._topics.named(value) for name, value in options.items()}}
        theirs, ours = (
            ({**question, "checkpoint": str(folder / name)} if folder is not None else question)
            for name in ("spark", "forebay")
        )
        waiting = self._threads.submit(self._jvm.ask, theirs)
        given = queries.answer(self._spark, "forebay", ours)
        return waiting.result(), given


@pytest.fixture(scope="module")
def both_on(jvm: SparkProcess, spark: Any, kafka_broker: KafkaBroker) -> Iterator[Callable[[], tuple[Both, Topics]]]:
    """Gives topics with a prefix of their own, and who asks about them."""
    with KafkaAdmin(kafka_broker.options) as admin:

        def made() -> tuple[Both, Topics]:
            topics = Topics(kafka_broker, admin, f"like-{os.getpid()}-{next(_numbers)}")
            return Both(jvm, spark, kafka_broker.options["bootstrap.servers"], topics), topics

        yield made


def _short(cases: list[Any]) -> list[Any]:
    return [pytest.param(case, id=case.name, marks=[] if case.short else pytest.mark.long) for case in cases]


@pytest.fixture(scope="module")
def laid_out(both_on: Callable[[], tuple[Both, Topics]]) -> Iterator[Both]:
    both, topics = both_on()
    topics.create("T-compacted", 1, **{name.replace(".", "_"): value for name, value in COMPACTED.items()})
    topics.write("T-compacted", [20])
    open_ones = lay_out(topics)
    yield both
    for producer in open_ones:
        producer.abort_transaction(30)


@pytest.mark.parametrize("case", _short(BATCHES))
def test_batch_query_returns_or_refuses_the_same_as_spark(laid_out: Both, case: Batch) -> None:
    theirs, ours = laid_out.ask({"kind": "batch", "options": case.options})
    difference = DIFFERENCES.get(case.name)
    if difference is None:
        assert _seen(ours, "ours") == _seen(theirs, "spark"), _refusals([ours], [theirs])
        if "refused" not in ours:
            assert ours == theirs
    else:
        assert (_seen(theirs, "spark"), _seen(ours, "ours")) == (difference.spark, difference.ours)


@pytest.mark.parametrize("case", _short(STREAMS))
def test_streaming_query_returns_or_refuses_the_same_as_spark(
    both_on: Callable[[], tuple[Both, Topics]], case: Stream, tmp_path: Path
) -> None:
    both, topics = both_on()
    found: list[tuple[Answer, Answer]] = []
    for step in case.steps:
        if isinstance(step, Change):
            step.act(topics)
        else:
            question = {"kind": "stream", "options": step.options, "trigger": step.trigger, "shape": step.shape}
            found.append(both.ask(question, tmp_path))
    difference = DIFFERENCES.get(case.name)
    theirs, ours = ([_without_ids(answer) for answer in answers] for answers in zip(*found, strict=True))
    if difference is None:
        assert _steps(ours, "ours") == _steps(theirs, "spark"), _refusals(ours, theirs)
        assert [_given(answer) for answer in ours] == [_given(answer) for answer in theirs]
    else:
        assert (_steps(theirs, "spark"), _steps(ours, "ours")) == (difference.spark, difference.ours)


def _without_ids(answer: Answer) -> Answer:
    """Our offsets without the keys that Spark's offsets do not have."""
    offsets = {
        number: {topic: at for topic, at in own.items() if not topic.startswith("#")}
        for number, own in answer["offsets"].items()
    }
    return {**answer, "offsets": offsets}


def _given(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if name != "refused"}


def _seen(answer: Answer, side: Side) -> str:
    """A refusal by its kind: words of one's own are no difference, another reason is."""
    if "refused" in answer:
        return f"refused: {kind_of(answer['refused'], side)}"
    if "batches" in answer:
        return f"{sum(len(rows) for rows in answer['batches'].values())} rows"
    return f"{len(answer['rows'])} rows in {answer['tasks']} tasks"


def _refusals(ours: list[Answer], theirs: list[Answer]) -> str:
    """Why either side refused."""
    return "\n".join(str(answer["refused"]) for answer in (*ours, *theirs) if "refused" in answer)


def _steps(answers: list[Answer], side: Side) -> str:
    return ", ".join(_seen(answer, side) for answer in answers)


def test_docs_name_each_difference_with_its_reason() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "STREAMING.md").read_text().split())
    assert set(DIFFERENCES) <= {case.name for case in BATCHES} | {case.name for case in STREAMS}
    for name, difference in DIFFERENCES.items():
        assert difference.spark != difference.ours, name
        assert difference.reason in page, name
