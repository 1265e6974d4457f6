"""The listeners of examples/listeners, with a real stream and a real pushgateway."""

from __future__ import annotations

import json
import logging

import pytest

from deploy.examples.listeners.jobs import ProgressLog, PushGateway
from direct.stream.strategies import Subscribe
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from tests.conftest import missing, running_in_ci
from tests.support.processes.direct_runs import Runs
from tests.support.processes.up import until
from tests.support.servers import pushgateway

pytestmark = pytest.mark.kafka


@pytest.fixture
def _pushgateway() -> None:
    """Skips or fails if there is no pushgateway; in CI it is fetched."""
    if pushgateway.is_there():
        return
    if not running_in_ci():
        missing("there is no pushgateway here: run python -m tests.support.servers.pushgateway")
    try:
        pushgateway.fetch()
    except UsageError as error:
        missing(str(error))


@pytest.mark.usefixtures("_pushgateway")
def test_batches_are_pushed_to_the_gateway_and_logged(
    runs: Runs, tps: list[TopicPartition], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pushgateway.running() as url, caplog.at_level(logging.INFO, "progress"):
        monkeypatch.setenv("PUSHGATEWAY", url)
        stream = runs.make(Subscribe([tps[0].topic])).foreach_batch(runs.job)
        stream.add_listener(ProgressLog()).add_listener(PushGateway()).start()
        runs.await_records(40)
        pushed = until(
            lambda: found if (found := pushgateway.pushed(url)).get("pushed_records_total") == {"s": 40} else None
        )
        assert pushed["pushed_total_delay_seconds"]["s"] > 0
        assert pushed["pushed_batch_failures_total"] == {"s": 0}
        assert pushed["pushed_lag_records"] == {"s": 40}
        assert pushed["push_failure_time_seconds"] == {"s": 0}
        runs.stop(stream)
    first, *_, last = [record.getMessage() for record in caplog.records if record.name == "progress"]
    progress = json.loads(first)
    assert (progress["batchId"], progress["numInputRows"]) == (1, 40)
    assert progress["offsets"] == {str(tps[0]): [0, 30], str(tps[1]): [0, 10]}
    assert last.strip() == "stream s stopped"
