"""A driver whose broker or store goes away says so within seconds, and shows no lag that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driver import IngestContext
from driver.background import reach
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import RefusedError
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, ready


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[MockBroker], Settings]:
    monkeypatch.setattr(reach, "INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr("driver.service.composition.INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(reach, "HANG_SECONDS", 0.5)
    monkeypatch.setattr("driver.http.tracked.END_AGE_SECONDS_MAX", 1.5)

    def configure(broker: MockBroker) -> Settings:
        broker.create_topic("t")
        return from_values(
            {
                "stream": "s",
                "kafka": {"topics": ["t"], "group": "g", **broker.options},
                "wal": {"url": f"file://{tmp_path}/wal"},
                "driver": {
                    "journal": f"file://{tmp_path}/journal",
                    "url": "http://127.0.0.1:0",
                    "engine": "local",
                    "batch_interval": "20ms",
                    "placing_interval": "100ms",
                },
                "agent": {"blocks": f"{tmp_path}/blocks"},
            }
        )

    return configure


def kinds(answer: m.StatusAnswer) -> set[str]:
    return {problem.kind for problem in answer.problems}


def test_driver_names_a_broker_and_a_wal_that_went_away(
    configured: Callable[[MockBroker], Settings], tmp_path: Path
) -> None:
    with MockBroker() as broker:
        settings = configured(broker)
        with IngestContext(None, settings) as intake:
            intake.foreach_batch(Collecting(1))
            tp = ready(intake, settings)
            PlayedReceiver(settings, intake.url).take_in(tp, 5)
            client = Client(intake.url)

            def until(holds: Callable[[m.StatusAnswer], bool]) -> m.StatusAnswer:
                for _ in range(3000):
                    if holds(answer := client.get("/v1/status", m.StatusAnswer)):
                        return answer
                    intake.await_termination(0.02)
                raise AssertionError(f"it never came: {answer.problems}, {answer.partitions}")

            until(lambda answer: all(p.lag is not None for p in answer.partitions) and not answer.problems)
            (tmp_path / "wal").rename(tmp_path / "elsewhere")
            assert "wal" in kinds(until(lambda answer: "wal" in kinds(answer)))
            (tmp_path / "elsewhere").rename(tmp_path / "wal")
            until(lambda answer: "wal" not in kinds(answer))
            broker.close()
            answer = until(lambda answer: "kafka" in kinds(answer) and all(p.lag is None for p in answer.partitions))
            (problem,) = (problem for problem in answer.problems if problem.kind == "kafka")
            assert problem.cause.startswith("Kafka is out of reach: ")
            assert problem.command
            with pytest.raises(RefusedError, match="named 'x'"):
                client.post("/v1/operator/forget", m.ForgetRequest(name="x"), m.OperatorAnswer)
