"""What differs from run to run, and how it is drawn from a seed."""

from __future__ import annotations

from random import Random

import msgspec

from forebay.model.units import Duration, Size
from forebay.settings.reading.load import from_values
from forebay.settings.schema import ReceiverSettings

STREAM = "sim"
TOPIC = "t"
#: a retention that no run outlasts: only a clock that is wrong lets clean-up delete a completed batch by its age
LONG_RETENTION_MS = 3_600_000
#: share by which a host's clock may run fast or slow
DRIFT_MAX = 0.01
#: wall clocks of agents, in 1970, 2004 and 2109: what is stored has the real time
AGENTS_MS = (0, 1 << 40, 1 << 42, 1 << 42)
#: of every driver and receiver; blocks are smaller than a file of settings could make them
SETTINGS = msgspec.structs.replace(
    from_values(
        {
            "stream": STREAM,
            "kafka": {"bootstrap.servers": "kafka:9092", "topics": [TOPIC], "discovery_interval": "5s"},
            "wal": {"url": "memory://wal"},
            "driver": {"journal": "memory://journal"},
            "agent": {"blocks": "/blocks"},
        }
    ),
    receiver=ReceiverSettings(
        block_interval=Duration(0.2),
        block_size=Size(120),
        memory=Size(2_000),
        drain_timeout=Duration(8.0),
        heartbeat_interval=Duration(15.0),
        report_timeout=Duration(2.0),
        reclaim_delay=Duration(0.3),
        local_copies=False,
    ),
)
#: kinds of faults that a run may have
FAULTS = ("receiver", "driver", "host", "network", "disk", "kafka", "journal", "replay")
#: kinds of faults of stores, clocks and messages; a run has few of them, so that each shows its own effects
MORE_FAULTS = ("rot", "store", "clock", "odd", "stall")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from run to run; part of a trace."""

    partitions: int = 2
    receivers: int = 2
    cooperative: bool = False
    on_gap: str = "record"
    retention_ms: int = 0
    retention_bytes: int = 0
    max_queued_batches: int = 2
    tasks: int = 2
    snapshot_events: int = 12
    segment_bytes: int = 2_000
    drivers_at_once: int = 2
    journal_objects: bool = False  # kept as whole objects
    wal_objects: bool = False
    wal_part_bytes: int = 0  # of an upload; receivers send objects of at least two parts in parts; 0: each is one write
    journal_reserve_bytes: int = 0  # 0: none
    wal_reserve_bytes: int = 0
    stays_full: bool = False  # a full disk is not enlarged when the faults end: completed batches must free it
    faults: tuple[str, ...] = FAULTS
    concurrent_jobs: int = 1
    window_batches: int = 0
    empty_batches: bool = False
    resets: bool = False  # an operator begins new incarnations; not drawn, since that excludes what dead writers left
    queries: bool = False  # one reads the intake by a cursor
    copies: int = 0  # number of hosts with a copy of each block; 0: there is a WAL
    ids: int = 0  # number of ids that the processes of one receiver take in turn, as pods do; 0: one
    #: number of ids from which on the driver forgets those without a heartbeat for ``ids_silent_seconds``; 0: never
    ids_kept: int = 0
    ids_silent_seconds: float = 0.0
    #: what makes a batch: "interval" (the timer), or a free worker: "late" (once an interval has ended), "continuous"
    trigger: str = "interval"
    warm_rounds: int = 0  # rounds without faults before the first step
    orphan: bool = False  # then a receiver dies between its sync and its report, and Kafka loses the records
    damage: int = 0  # seed of damage to blocks, once the faults have ended; 0: none
    recovers: bool = False  # an operator then recovers the WAL; else tasks read it
    one_host_name: bool = False  # all receivers' hosts have the same name; without a WAL, all receivers run on one host
    agents_ms: int = 1 << 42  # wall clock of every agent: by default the year 2109, in which every file is old
    drift: int = 0  # seed of the rates by which hosts' clocks run fast or slow; 0: all clocks run alike
    quiet: int = 5  # factor on the weight of each step that is no fault

    def drift_of(self, host: str) -> float:
        """Return by which share the clock of ``host`` runs fast; slow if it is negative."""
        return Random(f"{self.drift} {host}").uniform(-DRIFT_MAX, DRIFT_MAX) if self.drift else 0.0

    @classmethod
    def drawn(cls, seed: int) -> Options:
        """Draw some faults alone, some together: each may hide effects of others."""
        random = Random(seed)
        drawn = cls(
            partitions=random.choice((1, 2, 3)),
            receivers=random.choice((1, 2, 2, 3)),
            cooperative=random.random() < 0.5,
            on_gap=random.choice(("record", "stop")),
            retention_ms=random.choice((0, 0, 2_000)),
            retention_bytes=random.choice((0, 0, 3_000)),
            max_queued_batches=random.choice((1, 2, 4)),
            tasks=random.choice((1, 2, 3)),
            snapshot_events=random.choice((3, 12, 1_000)),
            segment_bytes=random.choice((1, 6_000, 100_000)),
            drivers_at_once=random.choice((1, 2, 2, 3)),
            faults=tuple(fault for fault in FAULTS if random.random() < (0.3 if fault == "journal" else 0.7)),
            quiet=random.choice((5, 20, 60)),
            journal_objects=random.random() < 0.4,
            wal_objects=random.random() < 0.5,
            journal_reserve_bytes=random.choice((0, 600, 600)),
            wal_reserve_bytes=random.choice((0, 600)),
            concurrent_jobs=random.choice((1, 1, 2, 3)),
            window_batches=random.choice((0, 0, 1, 2)),
            empty_batches=random.random() < 0.2,
            queries=random.random() < 0.4,
            trigger=random.choice(("interval", "late", "late", "continuous")),
            warm_rounds=random.choice((0, 5, 10)),
            orphan=random.random() < 0.4,
            drift=seed + 1 if seed % 2 else 0,
        )
        if drawn.wal_objects and random.random() < 0.5:  # this store shows no free space
            return msgspec.structs.replace(
                drawn, wal_part_bytes=random.choice((1_000, 1_000, 2_000)), wal_reserve_bytes=0
            )
        return drawn

    @classmethod
    def faulty(cls, seed: int) -> Options:
        """As :meth:`drawn`, with faults of stores, clocks and messages, without rebuilds, which lose what is damaged."""
        drawn, random = cls.drawn(seed), Random(seed)
        more = tuple(fault for fault in MORE_FAULTS if random.random() < 0.5) or (random.choice(MORE_FAULTS),)
        faults = tuple(fault for fault in drawn.faults if fault != "journal" and random.random() < 0.6)
        one_host_name = random.random() < 0.3
        damage, recovers = random.randrange(1, 1_000), random.random() < 0.6
        keeps_long = "clock" in more and random.random() < 0.5
        return msgspec.structs.replace(
            drawn,
            faults=(*faults, *more),
            orphan=drawn.orphan and random.random() < 0.5,
            one_host_name=one_host_name,
            damage=damage,
            recovers=recovers,
            retention_ms=LONG_RETENTION_MS if keeps_long else drawn.retention_ms,
            retention_bytes=0 if keeps_long else drawn.retention_bytes,
            segment_bytes=1 if keeps_long else drawn.segment_bytes,  # a segment for each block: each may fall due
        )

    @classmethod
    def without_wal(cls, seed: int) -> Options:
        """As :meth:`drawn`, with one copy or two in place of the WAL. A lost journal could not be rebuilt.

        In some runs the disks of hosts and the journal rot, or the journal's store is stuck. In some, all receivers run on one
        host. The clocks of agents are early by years, or late.
        """
        drawn, random, hosts = cls.drawn(seed), Random(seed), Random(f"hosts {seed}")
        faults = tuple(fault for fault in drawn.faults if fault != "journal")
        faults += tuple(fault for fault in ("rot", "stall") if random.random() < 0.5)
        return msgspec.structs.replace(
            drawn,
            copies=1 + bool(seed % 3),
            queries=False,
            orphan=False,  # no WAL holds it
            warm_rounds=max(5, drawn.warm_rounds),  # until then no host is known that takes a replica
            wal_objects=False,
            wal_part_bytes=0,
            wal_reserve_bytes=0,
            faults=faults,
            one_host_name=hosts.random() < 0.25,
            agents_ms=hosts.choice(AGENTS_MS),
        )

    @classmethod
    def forgetting(cls, seed: int) -> Options:
        """As :meth:`drawn`, with receivers whose ids change, and a driver that forgets ids as soon as it may."""
        random = Random(seed)
        return msgspec.structs.replace(
            cls.drawn(seed),
            receivers=random.choice((2, 3)),
            retention_ms=0,
            segment_bytes=1,  # a segment for each block: clean-up deletes all that is completed
            window_batches=0,
            queries=False,
            orphan=False,
            max_queued_batches=4,
            faults=tuple(fault for fault in FAULTS if random.random() < 0.5),
            ids=random.choice((0, 2, 3, 1_000)),
            ids_kept=random.choice((1, 2)),
            ids_silent_seconds=random.choice((0.0, 0.0, 1.0)),
            quiet=random.choice((20, 60)),
        )
