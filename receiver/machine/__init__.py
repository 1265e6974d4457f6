"""The receiver's decisions: inputs in, actions out. No clock, no threads, no I/O.

:class:`ReceiverMachine` routes each input to one part and returns the actions of all parts. A part is one module, owns its
state and calls only parts of the lines below its own:

* ``machine``: routes inputs, answers the service's questions; ``parts``: puts the parts together
* ``heartbeat``: heartbeats, and the driver's commands in their answers
* ``drain``: the last steps before the exit; ``status``: the receiver's state in one word and one sentence
* ``assignment``: what the group assigns, revokes and takes away; ``topic_check``: topic ids, read before a report;
  ``intake``: what a poll returned
* ``reports``: durable blocks to the driver, and its answers; ``claims``: lookup, commit, claim, release;
  ``faults``: partitions whose log does not continue at their position
* ``buffer``: records in memory, cut into blocks; ``commits``: accepted positions to the group
* ``registration``: epoch and topics; ``partitions``: which ones, in which phase and generation
* ``shutdown``: whether the receiver drains, and why
* ``flow``: rates and pauses; ``contact``: what is known about the driver; ``stores``: whether blocks become durable
* ``outbox``: actions, requests, log notes, counters; ``delays``: how delays grow

The parts share the rows of ``partitions`` (:class:`receiver.partition.Partition`), where each field names the part that
writes it, and the blocks of ``buffer`` (:class:`receiver.sealed_blocks.SealedBlocks`).
"""

from receiver.machine.machine import ReceiverMachine

__all__ = ["ReceiverMachine"]
