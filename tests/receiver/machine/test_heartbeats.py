"""Heartbeats: what the driver reads in them, and the commands in its answers (rule 9)."""

from __future__ import annotations

import msgspec

from forebay import messages
from forebay.model.bounds import NUMBER_MAX
from forebay.model.identifiers import numbered
from forebay.model.units import Duration
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.control.heartbeat import POLL_PATIENCE_SECONDS
from receiver.machine.exchange.recent_errors import ERROR_LENGTH_MAX, ERRORS_MAX
from tests.receiver.stage import P0, Stage, answer_beat, view


def test_command_is_performed_once_and_acknowledged() -> None:
    stage = Stage()
    stage.own(P0)
    order = messages.Command(version=4, driver_epoch=2, kind="reclaim", partitions=(P0,))
    stage.machine._parts.contact.epoch = 2
    answer_beat(stage, 2, order)
    stage.claim({P0: view(P0, 0, 20)})
    assert stage.all(act.Heartbeat)[-1].message.acknowledged == 4
    stage.tell(inp.HeartbeatAnswered(stage.machine._parts.requests.last, 2, (order,)))
    stage.none(act.Lookup)


def test_replicas_go_to_host_that_the_driver_names_also_after_its_name_changed() -> None:
    """A block is reported with the host's name, and the agent of the host accepts copies under that name only."""
    stage = Stage()
    stage.own(P0)
    for second in ("h2", "h2", "h2-renamed"):
        stage.wait(5.0)
        beat = stage.all(act.Heartbeat)[-1]
        named = messages.ReplicaHost(host=second, url="http://h2:1")
        stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (), named))
    assert [action.host.host for action in stage.all(act.ReplicateTo)] == ["h2", "h2-renamed"]


def test_an_older_drivers_commands_are_refused() -> None:
    """INV-4."""
    stage = Stage()
    stage.own(P0)
    new, old = numbered(1, 3), numbered(1, 2)
    answer_beat(stage, new)
    answer_beat(stage, new, messages.Command(version=9, driver_epoch=old, kind="stop"))
    assert stage.machine.state != "draining"
    assert stage.machine.counters["commands_refused"] == 1


def test_poll_that_hangs_stops_heartbeats_whatever_other_threads_do() -> None:
    """The driver notices it by the missing heartbeats. Stores and answers go on."""
    stage = Stage(heartbeat_interval=Duration(1.0))
    stage.own(P0)
    stage.tell(inp.HeartbeatAnswered(stage.one(act.Heartbeat).request, numbered(1, 1), ()))
    stage.now += POLL_PATIENCE_SECONDS + 1
    stage.tell(inp.StoreAway("the store is away"))
    stage.none(act.Heartbeat)
    stage.tell(inp.Tick())
    stage.one(act.Heartbeat)


def test_heartbeat_has_the_last_few_errors_that_did_not_end_the_process() -> None:
    stage = Stage(heartbeat_interval=Duration(1.0))
    stage.own(P0)
    stage.tell(inp.HeartbeatAnswered(stage.one(act.Heartbeat).request, numbered(1, 1), ()))
    for number in range(ERRORS_MAX + 3):
        stage.tell(inp.SourceSeen({}, f"broker {number} is away" + "!" * ERROR_LENGTH_MAX))
    stage.tell(inp.SourceSeen({}, "again"))
    stage.tell(inp.SourceSeen({}, ""))
    stage.tell(inp.SourceSeen({}, "again"))
    errors = stage.wait(2.0).one(act.Heartbeat).message.errors
    assert len(errors) == ERRORS_MAX
    assert all(len(error.message) <= ERROR_LENGTH_MAX for error in errors)
    assert (errors[-1].message, errors[-1].count, errors[-1].seconds_ago) == ("Kafka: again", 2, 2.0)


def test_heartbeats_tell_how_long_records_wait_for_the_seal_and_for_the_store() -> None:
    """So the driver's first view shows where records wait, and how long a write takes."""
    stage = Stage(block_interval=Duration(1.0), heartbeat_interval=Duration(0.25))
    start = stage.own(P0)[P0]

    def beat(seconds: float) -> tuple[float, int, float, int, float]:
        """Return what the heartbeat after ``seconds`` tells. The one before is answered only then."""
        before = stage.one(act.Heartbeat)
        stage.now += seconds
        stage.tell(inp.HeartbeatAnswered(before.request, numbered(1, 1), ()))
        (sent,) = (action for action in stage.actions if isinstance(action, act.Heartbeat))
        message = sent.message
        storing = message.storing_seconds, message.storing_records
        return message.open_seconds, message.open_records, *storing, message.store_seconds

    assert beat(0.25) == (0, 0, 0, 0, 0)
    stage.poll(start, range(10))
    assert beat(0.5) == (0.5, 10, 0, 0, 0)
    stage.wait(0.5)
    (first,) = stage.sealed()
    stage.poll(start, range(10, 30))
    assert beat(0.75) == (0.75, 20, 0.75, 10, 0)
    stage.store(first)
    assert beat(0.25) == (0, 0, 0, 20, 0.75), "the second block is sealed now"


def test_heartbeat_of_a_block_that_skips_nearly_all_offsets_has_a_number_that_the_driver_accepts() -> None:
    """A custom source may number by nanoseconds."""
    stage = Stage(heartbeat_interval=Duration(0.25))
    stage.poll(stage.own(P0)[P0], [0, NUMBER_MAX + 7])
    before = stage.one(act.Heartbeat)
    stage.wait(1.0)
    assert stage.sealed()
    stage.tell(inp.HeartbeatAnswered(before.request, numbered(1, 1), ())).wait(0.25)
    message = stage.one(act.Heartbeat).message
    assert message.storing_records == NUMBER_MAX
    msgspec.json.decode(msgspec.json.encode(message), type=type(message))
