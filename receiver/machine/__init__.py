"""The receiver's decisions: inputs in, actions out. No clock, no threads, no I/O.

:class:`ReceiverMachine` routes each input to one part and returns the actions of all parts. A part is one module. It owns its
state and calls only parts on lines below its own:

* ``machine``: routes inputs, answers the service's questions; ``parts``: composes the parts
* ``control``: ``heartbeat`` sends heartbeats and obeys the commands in their answers; ``drain`` takes the last steps before
  the exit; ``status`` gives the receiver's state in one word and one sentence
* ``ownership``: ``assignment``: partitions that the group assigns, revokes or takes away; ``topic_check``: topic ids, read
  before a report; ``claims``: lookup, commit, claim, release
* ``polling``: ``poll_results``: what a poll returned; ``faults``: partitions whose log does not continue at their position;
  ``gaps``: which gaps are proven to hold no record
* ``delivery``: ``reports``: durable blocks to the driver, and its answers; ``buffer``: records in memory, cut into blocks;
  ``commits``: accepted positions to the group; ``stores``: whether blocks become durable
* ``membership``: ``registration``: epoch and topics; ``partitions``: which ones, in which phase and generation;
  ``shutdown``: whether the receiver drains, and why
* ``limits``: ``flow``: limits of memory and rates; ``pausing``: which partitions pause; ``throttle``: token buckets
* ``exchange``: ``contact``: what is known about the driver; ``outbox``: actions, requests, log notes, counters;
  ``delays``: how delays grow

The parts share the rows of ``partitions`` (:class:`~receiver.machine.membership.partition.Partition`), where each field names
the part that writes it, and the blocks of ``buffer`` (:class:`~receiver.blocks.sealed_blocks.SealedBlocks`).
"""

from receiver.machine.machine import ReceiverMachine
from receiver.machine.membership.registration import ReceiverIdentity

__all__ = ["ReceiverIdentity", "ReceiverMachine"]
