"""The tracker: the driver's decisions, split by what each part owns. See :class:`driver.tracker.tracker.Tracker`.

::

    tracker      routes each request to the part that decides it
    receivers    receiver ids and their epochs, heartbeats, rates       agents     hosts: addresses, clean-up, managed receivers
    claims       who takes in a partition, and from where               operators  decisions of operators
    reports      which blocks are accepted                              batches    which blocks make a batch; completion; replays
    faults       positions at which Kafka no longer continues           deletion   what may be deleted
    adoption     the search of the WAL at such a position
    ------------------------------------------------------------------------------------------------------------------------
    writers      who may still write under older tokens                 replicas   hosts that hold blocks without a WAL
    commands     commands that a receiver has not acknowledged
    decision     the answer, events and actions of the decision that is being made
    requests     the requests; reads: those that only read the state         options    options of a tracker
"""

from __future__ import annotations

from driver.tracker.decision import Action, Decision, DeleteSegment
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from driver.tracker.options import CopyRules, CursorRules, TrackerOptions
from driver.tracker.tracker import Tracker

__all__ = [
    "Action",
    "CopyRules",
    "CursorRules",
    "Decision",
    "DeleteSegment",
    "LastAgentHeartbeat",
    "LastHeartbeat",
    "Tracker",
    "TrackerOptions",
]
