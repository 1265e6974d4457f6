"""The tracker: the driver's decisions, split by what each part owns. See :class:`driver.tracker.tracker.Tracker`.

::

    tracker      routes each request to the part that decides it
    operators    decisions of operators
    receivers    receiver ids and their epochs, heartbeats, rates       agents     hosts: addresses, clean-up, managed receivers
    batches      which blocks make a batch; completion                  cursors    what the WAL holds for queries
    replays      completed batches run again                            spans      batches of direct streams
    ------------------------------------------------------------------------------------------------------------------------
    partitions/  claims, tokens, faults, adoption                       blocks/    reports, replicas, deletion
    decision     the answer, events and actions of the decision that is being made
    requests     the requests; reads: those that only read the state    options    options of a tracker
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
