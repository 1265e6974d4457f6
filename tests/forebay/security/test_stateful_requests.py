"""A client that is registered, has claimed and reports sends every message with extreme, missing, repeated and reordered values.

The driver answers each and continues with bounded memory, and its journal replays after a kill.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.journal.log import reading as journal
from forebay.kafka.embedded.broker import MOCK_PARTITIONS, MockBroker
from tests.fuzz.wire import Player
from tests.support.processes.service_process import configured, running
from wal.storage import open_storage

#: as many partitions as accepted reports may use up, by ranges that end at the last offset there is
TOPICS = 16
#: what a driver may keep of tens of thousands of messages: blocks and receivers that it accepted among them
GROWTH_BYTES_MAX = 100_000_000
#: messages between two looks at whether the driver is well
CHECK_EVERY = 200


def play(folder: Path, broker: MockBroker, name: str, seed: object, seconds: float, numbers_alone: bool) -> Player:
    """``Player.walk``, then ``seconds`` of ``Player.wander``, a kill, and a start after it."""
    topics = [f"{name}-{number}" for number in range(TOPICS)]
    for topic in topics:
        broker.create_topic(topic)
    configuration = configured(folder, topics, broker.address)
    with running(configuration, "driver") as service:
        player = Player(service, topics, MOCK_PARTITIONS, seed)
        player.send_right()
        before = service.memory_bytes()
        for number, _ in enumerate(itertools.chain(player.walk(numbers_alone), player.wander(seconds))):
            if number % CHECK_EVERY == 0:
                player.check()
        player.check()
        grown = service.memory_bytes() - before
        print(f"seed {seed}: {sum(player.answered.values())} requests, {grown / 1e6:+.1f} MB")
        assert grown < GROWTH_BYTES_MAX
        service.process.kill()
        service.process.wait()
    reading = journal.read(open_storage(f"file://{folder}/journal"), "s")
    assert reading.state is not None and reading.state.blocks and not reading.corrections
    with running(configuration, "driver") as service:
        again = Player(service, topics, MOCK_PARTITIONS, f"{seed}-again")
        again.register()
        again.check()
    return player


def test_no_message_of_registered_receiver_ends_driver(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    player = play(tmp_path, mock_broker, topic_name(), "fixed", seconds=6.0, numbers_alone=True)
    accepted = {path for path, status in player.answered if status == 200}
    # what an operator may do only where something is lost, silent for long, or completed
    needs_more = {f"/v1/operator/{name}" for name in ("accept-gap", "fence", "accept-loss", "replay", "forget")}
    assert accepted >= player.routes().keys() - needs_more


@pytest.mark.long
def test_minutes_of_messages_of_a_registered_receiver_do_not_end_the_driver(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    play(
        tmp_path, mock_broker, topic_name(), random.SystemRandom().randrange(10**9), seconds=240.0, numbers_alone=False
    )
