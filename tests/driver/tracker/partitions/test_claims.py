"""Epochs of processes and tokens of owners (rules 1 and 2 in docs/architecture/ownership.md)."""

from __future__ import annotations

import pytest

from forebay import messages as m
from forebay.model.errors import FencedError, UsageError
from tests.support.state.tracked import TOPIC, Tracked, offsets


def test_the_same_instance_gets_the_same_epoch_again() -> None:
    t = Tracked()
    assert t.register() == t.register()


def test_a_new_instance_gets_a_new_epoch_and_ends_the_claims_of_the_older_one() -> None:
    """INV-4: the older process learns that it is superseded by whatever it does next."""
    t = Tracked()
    old = t.register()
    grant = t.claim(old)
    new = t.register(instance="i2")
    assert new > old
    assert t.state.partitions["t/0"].owner == ""
    with pytest.raises(FencedError, match="registered again"):
        t.report(old, t.block(old, [offsets(0, 5, grant.view.token)]))
    (result,) = t.report(new, t.block(new, [offsets(0, 5, grant.view.token)]))
    assert [s.reason for s in result.stale] == ["token"]
    assert t.state.partitions["t/0"].position == 0


def test_a_superseded_instance_that_registers_again_does_not_supersede_its_successor() -> None:
    """INV-4: its request was late, or it slept."""
    t = Tracked()
    t.register(instance="i1")
    new = t.register(instance="i2")
    with pytest.raises(FencedError, match="has registered"):
        t.register(instance="i1")
    assert t.register(instance="i2") == new


def test_a_receiver_of_another_stream_is_refused() -> None:
    with pytest.raises(UsageError, match="leads stream 'flights'"):
        Tracked().say(m.RegisterRequest(stream="x", receiver_id="r1", host="h", instance_id="i", release="1"))


def test_a_claim_that_names_an_older_token_changes_nothing() -> None:
    """Compare-and-set: a claim sent before another receiver's claim comes too late, however late it is (INV-4)."""
    t = Tracked()
    first, second = t.register("r1"), t.register("r2", "i2")
    seen_by_first = t.lookup(first).token
    granted = t.claim(second, receiver="r2")
    late = t.claim(first, known=seen_by_first)
    assert granted.granted
    assert not late.granted
    assert late.view.token == granted.view.token
    assert t.state.partitions["t/0"].owner == "r2"


def test_a_repeated_claim_is_refused_by_its_own_token_and_can_be_looked_up_again() -> None:
    t = Tracked()
    epoch = t.register()
    first = t.claim(epoch, known=0)
    again = t.claim(epoch, known=0)
    assert first.granted
    assert not again.granted
    assert t.claim(epoch).granted


def test_partition_without_an_incarnation_can_be_looked_up_but_not_claimed() -> None:
    t = Tracked(partitions=1)
    epoch = t.register()
    assert not t.lookup(epoch, 9).known
    assert not t.claim(epoch, 9, known=0).granted
    assert "t/9" not in t.state.partitions


def test_a_release_of_an_older_token_changes_nothing() -> None:
    t = Tracked()
    epoch = t.register()
    old = t.claim(epoch).view.token
    new = t.claim(epoch).view.token
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=0, token=old),)))
    assert t.state.partitions["t/0"].owner == "r1"
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=0, token=new),)))
    assert t.state.partitions["t/0"].owner == ""
