"""Offsets as the checkpoint stores them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.offsets import Offsets, parse_offsets

_POSITIONS = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "start", "b.c"]), st.integers(0, 12)), st.integers(0, 2**63 - 1)
)
_IDS = st.dictionaries(st.sampled_from(["a", "b.c"]), st.text())


@given(_POSITIONS, _IDS, st.none() | _POSITIONS)
def test_offsets_survive_a_round_trip_and_have_one_text(
    at: dict[TopicPartition, int], ids: dict[str, str], start: dict[TopicPartition, int] | None
) -> None:
    text = json.dumps(Offsets(at, ids, start).json())
    back = Offsets.of(json.loads(text))
    assert (dict(back.at), dict(back.topic_ids), back.start) == (at, ids, start)
    turned = Offsets(dict(reversed(at.items())), dict(reversed(ids.items())), start)
    assert json.dumps(turned.json()) == text


def test_the_offsets_of_sparks_kafka_source_are_read() -> None:
    found = parse_offsets('{"t":{"1":5,"0":-1}}', "startingOffsets")
    assert found == Offsets({TopicPartition("t", 1): 5, TopicPartition("t", 0): -1})


@pytest.mark.parametrize("text", ["[]", '{"t": 1}', '{"#more": {}}', '{"#topic-ids": {"t": 1}}', '{"#start": []}'])
def test_invalid_offsets_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Offsets.of(json.loads(text))
