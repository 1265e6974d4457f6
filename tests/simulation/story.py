"""A trace as a story: one sentence for each step, with the terms of docs/GLOSSARY.md."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: pattern of a label → sentence; the first that matches counts
_SENTENCES = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"start driver", "A driver starts."),
        (r"start (\S+)", r"A process of receiver \1 starts."),
        (r"produce (\S+) (\d+)", r"A producer appends \2 records to \1."),
        (r"end-transaction (\S+)", r"A transaction on \1 ends with a marker."),
        (r"compact (\S+) .*", r"Compaction removes some records of \1."),
        (r"retain (\S+) .*", r"Kafka's retention deletes the oldest records of \1."),
        (r"outlive (\S+) .*", r"Kafka's retention deletes records of \1 that were not taken in."),
        (r"recreate", "The topic is deleted and created again."),
        (r"rebalance", "The group rebalances."),
        (r"expire (\S+)", r"The group removes the member \1."),
        (r"deliver (\S+)/(\S+)#(\d+) (\S+)", r"\4 receives \2 \3 of \1."),
        (r"answer (\S+)/(\S+)#(\d+) .*", r"\1 receives the answer to its \2 \3."),
        (r"lose-answer (\S+)/(\S+)#(\d+) .*", r"The answer to \2 \3 of \1 is lost."),
        (r"lose (\S+)/(\S+)#(\d+)", r"The network loses \2 \3 of \1."),
        (r"repeat (\S+)/(\S+)#(\d+)", r"The network delivers \2 \3 of \1 twice."),
        (r"cut-answer (\S+)/(\S+)#(\d+) .*", r"\1 receives the answer to its \2 \3 only in part."),
        (r"other-answer (\S+)/(\S+)#(\d+) .*", r"Another program answers \2 \3 of \1."),
        (r"answers-late \d+", "All answers on their way are late: seconds or minutes pass."),
        (r"give-up (\S+)/(\S+)#(\d+)", r"\1 waits no longer for the answer to its \2 \3."),
        (r"crash driver-host .*", "The drivers' host loses power: what the journal did not sync is lost."),
        (r"crash receiver-host .*", "The receivers' host loses power: what the WAL did not sync is lost."),
        (r"lose journal 1", "The journal is lost, except its history."),
        (r"lose journal 0", "The journal is lost."),
        (r"rebuild", "An operator begins to rebuild the journal."),
        (r"rebuild step", "The rebuild goes one step further."),
        (r"rebuild (kill|crash) ?.*", "The rebuild is killed."),
        (r"recover", "An operator begins a recovery of the WAL."),
        (r"recover step", "The recovery goes one step further."),
        (r"recover (kill|crash) ?.*", "The recovery is killed."),
        (r"recover stop (\S+)", r"An operator stops \1 before a recovery."),
        (r"recover suspend (\S+)", r"\1 is suspended before a recovery."),
        (r"(\S+) full (\d+)", r"The disk of the \1 has \2 bytes left."),
        (r"(\S+) has-space", r"The disk of the \1 has space again."),
        (r"(\S+) lands-late .*", r"A late write of an object reaches the store of the \1."),
        (r"(\S+) omits .*", r"One listing of the \1 omits an object."),
        (r"(journal|wal) rots \d+", r"A file of the \1 rots: a bit flips, or its end is missing."),
        (r"(journal|wal) tears(-file)? \d+", r"One read of the \1 returns fewer bytes."),
        (r"(\S+) errs \d+", r"The next operation of the store of the \1 fails."),
        (r"(\S+) lists-old \d+", r"One listing of the \1 lacks its newest changes."),
        (r"(journal|wal) stalls \d+", r"From now on no request to the store of the \1 ends."),
        (r"(journal|wal) goes-on", r"The store of the \1 answers again."),
        (r"(\S+) rots \d+", r"A file in the block directory of \1 rots: a bit flips, or its end is missing."),
        (r"(\S+) folder-fails \d+", r"The next call of a kind fails in the block directory of \1."),
        (r"(\S+) heals", r"The faults of \1 end."),
        (r"wait \d+", "Seconds or minutes pass while a store does not answer."),
        (r"time (\d+)", r"\1 tenths of a second pass."),
        (r"(\S+) kill", r"\1 is killed."),
        (r"(\S+) pause", r"\1 is suspended."),
        (r"(\S+) wake", r"\1 continues."),
        (r"(\S+) drain", r"An operator drains \1."),
        (r"(\S+) renew", r"\1 renews its lease."),
        (r"(\S+) goes-on", r"A request of \1 to a store ends."),
        (r"(\S+) tick", r"\1 does what is due."),
        (r"(\S+) fetch (\S+)", r"\1 fetches records of \2."),
        (r"(\S+) poll", r"\1 polls."),
        (r"(\S+) group", r"\1 receives the group's answer."),
        (r"(\S+) source", r"\1 acts on its consumer."),
        (r"(\S+) ask-broker", r"\1 asks Kafka."),
        (r"(\S+) ask-broker-fails", r"\1 asks Kafka and gets no answer."),
        (r"(\S+) commit", r"Kafka takes a commit of \1."),
        (r"(\S+) commit-lost", r"A commit of \1 is lost."),
        (r"(\S+) append", r"\1 writes to its log."),
        (r"(\S+) sync", r"\1 syncs its log."),
        (r"(\S+) (\S+)-crash \d+", r"\1 is killed within its step \2."),
        (r"(\S+) (append|sync)-fails", r"The store fails the \2 of \1."),
        (r"(\S+) sync-lands-(\S+)", r"The store fails the write of \1, and carries it out \2."),
        (r"(\S+) upload", r"The WAL's store answers a request of \1."),
        (r"(\S+) upload-(lost|broken|late)", r"A request of \1 to the WAL's store gets no answer (\2)."),
        (r"(\S+) upload-(unanswered|cut)", r"The WAL's store carries out a request of \1, whose answer is lost (\2)."),
        (r"(\S+) upload-repeated", r"The WAL's store receives a request of \1 twice."),
        (r"(\S+) decide", r"\1 decides what waits."),
        (r"(\S+) release", r"\1 sends its answers."),
        (r"(\S+) check", r"\1 checks whether a newer epoch was claimed."),
        (r"(\S+) accept-gap (\S+)", r"An operator accepts the gap of \2."),
        (r"(\S+) replay (\d+)", r"An operator replays the last \2 batches."),
        (r"(\S+) (\S+):(\S+)", r"\1 goes on with \2: \3."),
    )
]


def sentence(label: str) -> str:
    """Return the sentence of a step; the label itself if there is none."""
    for pattern, text in _SENTENCES:
        found = pattern.fullmatch(label)
        if found is not None:
            return found.expand(text)
    return label


def story(labels: Iterable[str], violation: str) -> str:
    """Return the steps as numbered sentences, with their labels, and what they break."""
    lines = [f"{number}. {sentence(label)} (`{label}`)" for number, label in enumerate(labels, 1)]
    return "\n".join([*lines, "", f"This breaks {violation}", ""])
