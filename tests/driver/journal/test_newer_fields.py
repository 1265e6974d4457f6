"""An older release ignores the fields that it does not know: of an event, of a part of one, and of a driver's answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.journal.events import BatchAllocated, IncarnationStart
from forebay.kafka.consume.spans import OffsetRange
from forebay.messages.intake import IntakePartition


def as_older(kind: type[msgspec.Struct], added: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return the class of a release that does not know the fields ``added`` of ``kind``."""
    config = kind.__struct_config__
    known = [(field.encode_name, field.type) for field in msgspec.structs.fields(kind) if field.name not in added]
    assert len(known) == len(msgspec.structs.fields(kind)) - len(added)
    return msgspec.defstruct(
        "Older", known, tag_field=config.tag_field, tag=config.tag, forbid_unknown_fields=config.forbid_unknown_fields
    )


@pytest.mark.parametrize(
    ("written", "added"),
    [
        (BatchAllocated(7, 1, 5, (("r1-1-1",),), "orders", {"clicks": 3}), ("leader", "partners")),
        (IncarnationStart("t", 0, 5, "an-id", 3), ("leader_epoch",)),
        (OffsetRange("t", 0, 5, 9, "an-id", 4, 3), ("leader_epoch",)),
        (IntakePartition(topic="t", partition=0, position=5, incarnations=(), leader_epoch=3), ("leader_epoch",)),
    ],
)
@pytest.mark.parametrize("codec", [msgspec.msgpack, msgspec.json])
def test_older_release_ignores_joint_batches_and_leader_epochs(
    written: msgspec.Struct, added: tuple[str, ...], codec: Any
) -> None:
    read = codec.decode(codec.encode(written), type=as_older(type(written), added))
    assert {name for name in added if hasattr(read, name)} == set()
    fields = msgspec.to_builtins(written)
    assert msgspec.to_builtins(read) == {name: value for name, value in fields.items() if name not in added}
