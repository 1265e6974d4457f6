"""The simulation: real decisions, journal, WAL writers and receivers in one process, under a seeded scheduler.

What is real: ``driver.tracker``, ``driver.journal`` (including its opening, state and history), ``recovery.audit``, the
scan of clean-up, ``wal.segments.writer``, ``wal.segments.scan``, ``receiver.machine``, the encoding of blocks, and what
Kafka must prove before a task reads from it (``forebay.kafka.consume.block_ranges``; ``kafka_tier.py`` around it). What is
modelled: Kafka (``kafka.py``), the network (``network.py``), the services around the machines (``driver_process.py``,
``receiver_process.py``) and the disks (``tests.support.forgetful``, which forget unsynced bytes). There are no threads
and no real time. A run is a list of *steps*, each named by a label such as ``r1.2 poll`` or ``deliver r1.2/report#3 d1``.
Between any two steps a process may be killed or paused, a host may lose its page cache, and a message may be lost,
repeated or delayed. ``invariants.py`` checks everything after every step.

* ``python -m tests.simulation`` runs new seeds until it is stopped; ``--seed N`` runs one of them, ``--runs N`` a number of
  them, and ``--steps N`` sets the number of steps with faults. Then all faults end, and every record must be taken in and
  completed within a bounded number of steps.
* A failure prints its seed and the steps that led to it, reduced to the relevant ones. It also writes them as a trace, a
  JSON file that ``--replay FILE`` runs again.
* ``traces/*.json`` are fixed traces, one for each old mistake: ``mistakes.py`` plants the mistake, and the trace was recorded
  from a script in ``scenarios.py`` (``--record`` records them anew after a change of the steps).

A label of a trace that begins with ``?`` is taken only if the step is possible: only the mistaken code offers it.
"""
