"""The simulation: real decisions, journal, WAL writers and receivers in one process, under a seeded scheduler.

What is real: ``driver.tracker``, ``driver.journal.state``, ``driver.journal`` (opening included), ``driver.journal.history``,
``recovery.audit``, the clean-up's scan, ``wal.segments.writer``, ``wal.segments.scan``, ``receiver.machine``, the encoding of
blocks, and what Kafka must prove to a task (``forebay.kafka.consume.block_ranges``; ``kafka_tier.py`` around it).
What is modelled: Kafka (``kafka.py``), the network (``network.py``), the shells around the machines (``driver_process.py``,
``receiver_process.py``) and the disks (``tests.support.forgetful``, which forget what was not synced). No threads, no real
time: a run is a list of *steps*, each named by a label such as ``r1.2 poll`` or ``deliver r1.2/report#3 d1``, and between any
two of them a process may be killed or paused, a host may lose its page cache, a message may be lost, repeated or late.
``invariants.py`` checks everything after every step.

* ``python -m tests.simulation`` runs new seeds until it is stopped; ``--seed N`` one of them, ``--runs N`` so many,
  ``--steps N`` as long with faults. Afterwards all faults end, and everything must be taken in and completed within a
  bounded number of steps.
* A failure prints its seed and the steps that led to it, cut down to those that matter, and writes them as a trace, a JSON
  file that ``--replay FILE`` runs again.
* ``traces/*.json`` are fixed traces, one for each old mistake: ``mistakes.py`` plants the mistake, ``scenarios.py`` is the
  script that the trace was recorded from (``--record`` writes them anew after a change of the steps).

In a trace a label that begins with ``?`` is taken only where it can be: a step that only the mistaken code offers.
"""
