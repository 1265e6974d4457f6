"""Which agents a driver asks for blocks."""

from __future__ import annotations

from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.service import Driver, DriverOptions
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.client.admin import KafkaAdmin
from forebay.process.clock import ManualClock
from tests.support.state.intakes import Collecting, Configure


def test_agent_without_a_recent_heartbeat_is_not_asked_for_blocks(settings: Configure) -> None:
    """It would cost a time-out for each of its blocks."""
    s = settings(receiver_timeout="1s")
    clock = ManualClock()
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=LocalEngine(s, dict),
        jobs=(NamedJob("job", Collecting(1)),),
        clock=clock,
        options=DriverOptions(release="test"),
    )
    try:
        driver.start()
        beat = m.AgentHeartbeatRequest(
            host="h1", url="http://h1:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0
        )
        Client(driver.url).post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer)
        assert driver.agent_urls() == {"h1": "http://h1:1"}
        clock.advance(1.5)
        assert driver.agent_urls() == {}
    finally:
        driver.close()


def test_an_agent_that_is_about_to_end_is_asked_for_nothing_until_it_is_back(settings: Configure) -> None:
    """Neither for its own blocks nor for copies that it was given."""
    s = settings()
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=LocalEngine(s, dict),
        jobs=(NamedJob("job", Collecting(1)),),
        clock=ManualClock(),
        options=DriverOptions(release="test"),
    )
    try:
        driver.start()
        client = Client(driver.url)
        for state, urls, copies in (
            ("active", {"h1": "http://h1:1"}, {"b": ("h1",)}),
            ("draining", {}, {}),
            ("active", {"h1": "http://h1:1"}, {"b": ("h1",)}),
        ):
            beat = m.AgentHeartbeatRequest(
                host="h1", url="http://h1:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0,
                state=state, copies=("b",),
            )  # fmt: skip
            client.post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer)
            assert driver._parts is not None
            assert (driver.agent_urls(), driver._parts.agents.copies()) == (urls, copies)
        client.close()
    finally:
        driver.close()
