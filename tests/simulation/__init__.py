"""The simulation: the product's code in one process, under a seeded scheduler. There are no threads and no real time.

What is real: the decision loop, housekeeping, admission, clean-up, snapshot copies and adoption as the driver runs them
(``shells.py`` turns their threads into steps), ``driver.tracker``, ``driver.journal`` (including its opening, state, history
and lease), ``recovery``, ``wal.segments``, the whole ``receiver`` below its ``main`` (``receiver_process.py``), what Kafka must
prove before a task reads from it (``forebay.kafka.consume.block_ranges``), the planning of queries over the intake, a receiver's
requests to a store of objects (``uploads.py``), and without a WAL the agent's store and heartbeat (``hosts.py``).

What is modelled, and which tests run the real code: docs/RELIABILITY.md, "Simulation".

A run is a list of *steps*, each named by a label such as ``r1.2 poll`` or ``deliver r1.2/report#3 d1``. Between any two steps
a process may be killed or paused, a host may lose its page cache, a message may be lost, repeated or delayed, a store may
answer wrongly (``faulty.py``), and a call in a host's block directory may fail (``folder_faults.py``). ``invariants`` checks
everything after every step, by what is durable (``durable.py``).

* ``python -m tests.simulation`` runs new seeds until it is stopped; ``--seed N`` runs one of them, ``--runs N`` a number of
  them, and ``--steps N`` sets the number of steps with faults. Then all faults end, and every record must be taken in and
  completed within a bounded number of steps. ``--runs`` ends with what happened, and in how many runs.
* ``--hours H`` runs on all cores, and continues runs that reached a decision in a new way (``coverage.py``, ``night.py``).
* A failure prints its seed and, as a story, the steps that led to it, reduced to the relevant ones. It also writes them as a
  trace, a JSON file that ``--replay FILE`` runs again.
* ``traces/*.json`` are fixed traces, one for each old mistake: ``mistakes.py`` plants the mistake, and the trace was recorded
  from a script in ``scenarios`` (``--record`` records them anew after a change of the steps).
* ``python -m tests.simulation.mutations`` removes guards of the product (``guards.toml``), one at a time, and measures how
  many removals are noticed.

A label of a trace that begins with ``?`` is taken only if the step is possible: only the mistaken code offers it.
"""
