"""When an older writer is settled: a gap waits until it can write nothing more."""

from __future__ import annotations

import pytest

from driver.journal import events as ev
from driver.journal.state import ADOPTER, State
from driver.journal.transitions import apply
from driver.tracker import Tracker
from driver.tracker.requests import Searches
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError
from tests.support.state.orphans import Stream
from tests.support.state.tracked import STREAM, TOPIC, Tracked, tp, tracker_options


def waits_for(t: Tracked) -> tuple[str, ...]:
    (found,) = t.searches()
    return found.waits_for


def test_a_gap_waits_for_the_older_writer_until_it_says_that_it_holds_nothing() -> None:
    """Not for its silence, and not for a heartbeat that names its token; the gap is refused to a person meanwhile."""
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    t.faulted()
    assert waits_for(t) == ("r1",)
    with pytest.raises(RefusedError, match=r"The search waits until receiver r1 .*--fence r1`"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=40))
    t.beat(old, holding=(token,))
    assert waits_for(t) == ("r1",)
    t.beat(old)
    assert waits_for(t) == ()


def test_a_heartbeat_from_before_the_claim_settles_nothing_however_late_it_comes() -> None:
    """Trace: granted, the answer on its way; an older heartbeat, which names nothing, arrives; then the receiver writes."""
    t = Stream()
    old = t.register("r1", "i1")
    before = t.claims
    t.claim(old)
    t.beat(old, claims_done=before)
    t.faulted()
    t.beat(old, claims_done=before)
    assert waits_for(t) == ("r1",)


def test_a_claim_whose_answer_was_lost_is_settled_when_the_receiver_has_given_it_up() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    number = t.claims
    t.faulted()
    t.beat(old, claims_done=number - 1)
    assert waits_for(t) == ("r1",)
    t.beat(old, claims_done=number)
    assert waits_for(t) == ()


def test_a_heartbeat_of_an_older_release_settles_nothing() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    t.beat(old, claims_done=-1)
    assert waits_for(t) == ("r1",)


def test_the_heartbeat_of_an_ended_epoch_settles_no_writer_of_the_next_epoch() -> None:
    """INV-4: the earlier process had done more claims than the new one, and held nothing when it ended."""
    t = Stream()
    t.beat(t.register("r1", "i1"), claims_done=9)
    new = t.register("r1", "i1-again")
    t.claim(new)
    t.faulted()
    assert waits_for(t) == ("r1",)
    t.beat(new)
    assert waits_for(t) == ()


@pytest.mark.parametrize("how", ["registered again", "released", "fenced"])
def test_a_writer_is_settled_by_the_end_of_its_epoch_or_its_token(how: str) -> None:
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    if how == "released":
        release = m.Release(topic=TOPIC, partition=0, token=token)
        t.say(m.ReleaseRequest(receiver_id="r1", epoch=old, releases=(release,)))
    t.faulted()
    if how == "registered again":
        t.register("r1", "i1-again")
    elif how == "fenced":
        t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id="r1"))
    assert waits_for(t) == ()


def test_fenced_receiver_is_refused_and_returns_only_as_a_new_process() -> None:
    """INV-4."""
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id="r1"))
    for request in (lambda: t.beat(old), lambda: t.register("r1", "i1"), lambda: t.lookup(old)):
        with pytest.raises(FencedError):
            request()
    assert t.register("r1", "i1-again") > old


def test_only_a_receiver_that_is_waited_for_can_be_fenced() -> None:
    t = Stream()
    bystander = t.register("r3", "i3")
    t.faulted()
    for name in ("r3", "r2", "nobody", ADOPTER):
        with pytest.raises(RefusedError, match="does not wait for"):
            t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id=name))
    assert t.lookup(bystander, receiver="r3").known


def test_a_receiver_that_takes_in_under_an_outdated_token_is_ordered_to_claim_again_once() -> None:
    """Without records it would never have a report refused, and be waited for without end."""
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    t.faulted()
    t.beat(old, holding=(token,))
    t.say(Searches())
    t.say(Searches())
    (command,) = t.beat(old, holding=(token,))
    assert (command.kind, command.partitions) == ("reclaim", (tp(),))


def test_the_word_of_an_older_writer_is_journalled_and_that_of_the_owner_asked_for_anew() -> None:
    """INV-7: the older one may have ended since, in good order, and would be waited for without end after a driver's
    restart; the owner goes on telling."""
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    t.beat(old)
    assert waits_for(t) == ()
    t.tracker.receivers.latest.clear()
    assert waits_for(t) == ("r2",)
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state


def test_a_release_that_comes_after_the_next_claim_still_settles() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    t.faulted()
    release = m.Release(topic=TOPIC, partition=0, token=token)
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=old, releases=(release,)))
    assert waits_for(t) == ()
    assert t.partition.owner == "r2"


def test_a_driver_that_opens_the_journal_settles_by_the_first_heartbeat() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    after = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options())
    t.tracker = after
    t.beat(old)
    assert [e.receiver_id for e in t.events if isinstance(e, ev.WriterSettled)] == ["r1"]


def test_an_older_claim_of_one_epoch_is_settled_with_its_newest() -> None:
    """One entry for each epoch, so that the state stays small however often a partition is claimed."""
    t = Stream()
    old = t.register("r1", "i1")
    first = t.claim(old).view.token
    t.claim(old)
    t.faulted()
    assert len(t.partition.writers) == 2
    t.beat(old, holding=(first,))
    assert waits_for(t) == ("r1",)
