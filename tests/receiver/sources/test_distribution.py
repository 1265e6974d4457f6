"""Which class the settings name, which partitions it has, and which receiver reads each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay.model.errors import SettingsError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.sources.custom import CustomUpstream, dealt, make, ordinal_of
from receiver.sources.custom_source import custom_source_of
from tests.support.state.custom_sources import A, B, RecordingListener, settings_for


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_partitions_are_distributed_evenly_each_to_one_receiver(count: int) -> None:
    names = [f"n{number}" for number in range(10)]
    shares = [dealt(reversed(names), ordinal, count) for ordinal in range(count)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_receiver_id_gives_the_ordinal() -> None:
    """Two ids with one ordinal would claim the same partition in turns, and no registration would end one of them."""
    settings = settings_for(count=3)
    assert [ordinal_of(settings, f"s-r{n}") for n in range(3)] == [0, 1, 2]
    for wrong in ("s-r3", "host-1", "r0", "other-r0", "s-r01"):
        with pytest.raises(UsageError, match=r"allowed ids are s-r0 to s-r2"):
            ordinal_of(settings, wrong)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("Nothing", {}, "has no class 'Nothing'"),
        ("HERE", {}, "has no class 'HERE'"),
        ("HandClock", {}, "must be a subclass of ReliableSource or UnreliableSource"),
        ("NotWhole", {}, r"lacks close, partitions, poll\(\)"),
        ("Lists", {"folder": "/x"}, r"the parameters of .* are \(count: .*unexpected keyword argument 'folder'"),
        ("SaysNo", {}, "ValueError: no folder is named"),
        ("NamedBadly", {}, "name = 'a/b'"),
    ],
)
def test_unusable_class_is_refused_with_the_reason(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make(settings_for(source, **options))


def test_module_that_cannot_be_imported_is_refused_with_the_reason() -> None:
    settings = settings_for()
    receiver = msgspec.structs.replace(settings.receiver, source="no_such_module:Class")
    with pytest.raises(SettingsError, match="module 'no_such_module' can't be imported: ModuleNotFoundError"):
        make(msgspec.structs.replace(settings, receiver=receiver))


def test_driver_asks_the_class_for_partitions_and_first_offsets() -> None:
    upstream = CustomUpstream(settings_for(count=5))
    assert upstream.partitions() == {A, B}
    assert upstream.starting_offsets("earliest", [A], "g") == {A: 0}
    assert upstream.starting_offsets({"a/0": 0}, [A, B], "g") == {A: 0, B: 0}
    with pytest.raises(UsageError, match=r"starting offset 1 of a/0: .* has 0 to 0"):
        upstream.starting_offsets({"a/0": 1}, [A], "g")
    assert upstream.topic_ids(["a"]) == {"a": ""} and upstream.ends([A]) == {A: 0}
    of_queue = CustomUpstream(settings_for("Queue", count=2))
    assert of_queue.partitions() == {TopicPartition("q", 0), TopicPartition("q", 1)}
    with pytest.raises(UsageError, match="has no end"):
        of_queue.ends([TopicPartition("q", 0)])


def test_custom_source_is_made_from_the_settings() -> None:
    adapter = custom_source_of(settings_for("Queue", count=3), "s-r2", SystemClock())
    listener = RecordingListener()
    adapter.subscribe(listener)
    adapter.poll(1, 0)
    assert listener.calls == [("assigned", [TopicPartition("q", 2)])]
