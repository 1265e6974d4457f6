"""The driver's metrics. Names begin with ``forebay_driver`` if they describe the process, else they describe the stream."""

from __future__ import annotations

from forebay.metrics.definition import BATCH_SECONDS, REQUEST_SECONDS, counter, gauge, histogram
from forebay.metrics.exposition import BUILD_INFO

#: the kinds of problems that ``forebay status`` shows
PROBLEMS = (
    "agent-gone",
    "batch-unreadable",
    "blocks-not-deleted",
    "cursor",
    "driver",
    "job",
    "journal",
    "kafka",
    "partition",
    "partitions-without-receiver",
    "paused",
    "receiver-gone",
    "receiver-ids",
    "receiver-not-running",
    "receiver-waiting",
    "receiver-without-host",
    "source",
    "wal",
)
DRIVER_STATES = ("waiting", "standby", "running", "stopping", "failed")
RECEIVER_STATES = ("registered", "starting", "active", "waiting", "draining", "lost")
PARTITION_STATES = ("active", "paused", "claiming", "claimed", "unclaimed", "fault")
AGENT_STATES = ("active", "draining", "lost")
BATCH_STATES = ("queued", "running", "failing", "failed", "unreadable")
FAILURES = ("job", "unreadable")

# ---- the driver ----------------------------------------------------------------------------------------------------------

LEADS = gauge("forebay_driver_leads", "1 if the driver leads the stream, 0 if it is a standby or still starting.")
STATE = gauge(
    "forebay_driver_state",
    "1 for the present state of the driver, 0 for the others. A driver with a failed batch is failed.",
    "state",
    values=DRIVER_STATES,
)
SNAPSHOT_AGE = gauge(
    "forebay_driver_snapshot_age_seconds",
    "Age of the values read from the driver's state. It grows while the decision loop does not answer.",
)
DECISION_WAIT = histogram(
    "forebay_driver_decision_wait_seconds",
    "Time from the arrival of a request in the decision loop to its durable answer: the oldest request of each group.",
    REQUEST_SECONDS,
)
LONGEST_WAIT = gauge(
    "forebay_driver_decision_longest_wait_seconds",
    "Longest time in the last minute from the arrival of a request in the decision loop to its durable answer.",
)
QUEUED_REQUESTS = gauge(
    "forebay_driver_queued_requests", "Requests that wait for the decision loop. At 10,000 the driver refuses more."
)
HTTP_REQUESTS = gauge("forebay_driver_http_requests", "HTTP requests that the driver is answering.")
LISTENER_EVENTS = counter(
    "forebay_driver_listener_events_total",
    "Events for the user's listeners and web hook, by listener and outcome (delivered or dropped).",
    "listener",
    "outcome",
)
LISTENER_QUEUE = gauge("forebay_driver_listener_queue", "Events that wait for a listener.", "listener")
STORE_REQUESTS = counter(
    "forebay_driver_store_requests_total",
    "Requests of the driver to remote stores, by kind, such as journal_put and wal_get. Absent for local stores.",
    "request",
)

# ---- the journal ---------------------------------------------------------------------------------------------------------

JOURNAL_SYNC = histogram(
    "forebay_journal_sync_seconds", "Duration of each sync of the journal, with waits for space.", REQUEST_SECONDS
)
JOURNAL_EVENTS = counter("forebay_journal_events_total", "Events in the journal since its timeline began.")
JOURNAL_UNSNAPPED = gauge(
    "forebay_journal_events_since_snapshot", "Events that the next driver reads after the newest snapshot."
)
JOURNAL_BYTES = gauge(
    "forebay_journal_bytes", "Bytes of this driver's journal segments. Absent on a store of whole objects."
)
JOURNAL_SEGMENTS = gauge("forebay_journal_segments", "Journal segments of this driver.")
JOURNAL_FREE = gauge("forebay_journal_free_bytes", "Free bytes in the journal's store. Absent if it reports none.")

# ---- problems ------------------------------------------------------------------------------------------------------------

PROBLEM = gauge(
    "forebay_problems",
    "Problems that need a person, by kind, as `forebay status` shows them.",
    "kind",
    values=PROBLEMS,
)
PENDING = gauge(
    "forebay_pending_problems", "Conditions that become problems if they last, by kind.", "kind", values=PROBLEMS
)

# ---- partitions ----------------------------------------------------------------------------------------------------------

PARTITIONS = gauge("forebay_partitions", "Partitions of the stream, by state.", "state", values=PARTITION_STATES)
POSITION = gauge(
    "forebay_partition_position", "Next offset to take in. Sums are over partitions.", "topic", "partition"
)
COMPLETED = gauge("forebay_partition_completed", "Offset before which all batches are completed.", "topic", "partition")
END = gauge("forebay_partition_end", "End offset of the partition in Kafka.", "topic", "partition")
LAG_RECORDS = gauge(
    "forebay_partition_lag_records",
    "Offsets in Kafka that are not taken in. Absent if Kafka has not reported the end for 10 s.",
    "topic",
    "partition",
)
LAG_SECONDS = gauge(
    "forebay_partition_lag_seconds",
    "Age of the oldest record that is in Kafka or in Forebay, and in no completed batch; 0 if there is none. Absent as the "
    "lag in records.",
    "topic",
    "partition",
)

# ---- intake --------------------------------------------------------------------------------------------------------------

RECEIVERS = gauge("forebay_receivers", "Receivers that are registered, by state.", "state", values=RECEIVER_STATES)
REGISTRATIONS = counter(
    "forebay_receiver_registrations_total", "Registrations of receivers at this driver: one for each start."
)
AGENTS = gauge("forebay_agents", "Agents, by state.", "state", values=AGENT_STATES)
TAKEN_BLOCKS = counter("forebay_taken_blocks_total", "Blocks that this driver accepted.")
TAKEN_RECORDS = counter("forebay_taken_records_total", "Records in the blocks that this driver accepted.")
TAKEN_BYTES = counter("forebay_taken_bytes_total", "Bytes of keys and values in the blocks that this driver accepted.")
LOST_OFFSETS = counter(
    "forebay_lost_offsets_total",
    "Offsets that Kafka lost before they were taken in, and that this driver recorded as gaps.",
)
LEARNED_RATE = gauge(
    "forebay_learned_records_per_second",
    "Rate that backpressure has learned from the job. Absent if it is off or has learned none.",
)

# ---- batches -------------------------------------------------------------------------------------------------------------

BATCH_INTERVAL = gauge(
    "forebay_batch_interval_seconds", "Time between two batches (driver.batch_interval); 0: one after the other."
)
WAITING_BLOCKS = gauge("forebay_waiting_blocks", "Blocks that are in no batch yet.")
WAITING_RECORDS = gauge("forebay_waiting_records", "Records in blocks that are in no batch yet.")
BATCHES = gauge("forebay_batches", "Batches that are not completed, by state.", "state", values=BATCH_STATES)
QUEUED_RECORDS = gauge("forebay_queued_records", "Records in batches that are not completed.")
OLDEST = gauge(
    "forebay_oldest_block_seconds", "Age of the oldest block that is in no completed batch; 0 if there is none."
)
COMPLETED_BATCHES = counter("forebay_completed_batches_total", "Batches completed since the stream began.")
COMPLETED_RECORDS = counter("forebay_completed_records_total", "Records in batches completed since the stream began.")
SCHEDULING_DELAY = histogram(
    "forebay_batch_scheduling_delay_seconds",
    "Time from a batch's time to the first start of its job. Without replays, as all histograms of batches.",
    BATCH_SECONDS,
)
PROCESSING = histogram(
    "forebay_batch_processing_seconds",
    "Duration of the job for a batch, without failed attempts.",
    BATCH_SECONDS,
)
TOTAL_DELAY = histogram(
    "forebay_batch_total_delay_seconds", "Time from a batch's time to the end of its job.", BATCH_SECONDS
)
END_TO_END = histogram(
    "forebay_batch_end_to_end_seconds",
    "Time from a record's timestamp in Kafka to the end of its batch's job: the newest record of the batch's oldest range.",
    BATCH_SECONDS,
)
PAUSED = gauge("forebay_paused", "1 while an operator has paused the batches, else 0. Intake continues.")
FAILED_ATTEMPTS = counter(
    "forebay_batch_failures_total",
    "Failed attempts at batches: job (the job raised an error) or unreadable (a block could not be read).",
    "kind",
    values=FAILURES,
)
REPLAYED = counter("forebay_replayed_batches_total", "Batches that replays have run again under this driver.")
REPLAY_BATCHES = gauge("forebay_replay_batches", "Batches that the running replay has yet to complete; 0: no replay.")
TIER_READS = counter(
    "forebay_tier_reads_total",
    "Ranges that jobs looked for in a tier (local, agent, wal, kafka), by outcome: read, or the kind of the failure.",
    "tier",
    "outcome",
)

# ---- storage -------------------------------------------------------------------------------------------------------------

WAL_BYTES = gauge("forebay_wal_bytes", "Bytes of the WAL segments that the journal names. Absent without a WAL.")
WAL_SEGMENTS = gauge("forebay_wal_segments", "WAL segments that the journal names. Absent without a WAL.")
WAL_BLOCKS = gauge("forebay_wal_blocks", "Blocks of the WAL that the journal names. Absent without a WAL.")
WAL_HELD_BYTES = gauge("forebay_wal_held_by_cursors_bytes", "Bytes of the WAL segments that are kept only for cursors.")
CURSORS = gauge(
    "forebay_cursors",
    "Cursors of queries: open ones, and those that expired and that no person has acknowledged.",
    "state",
    values=("open", "expired"),
)

#: counted when they happen; all others are read at a scrape
COUNTED = (
    DECISION_WAIT,
    JOURNAL_SYNC,
    REGISTRATIONS,
    TAKEN_BLOCKS,
    TAKEN_RECORDS,
    TAKEN_BYTES,
    LOST_OFFSETS,
    SCHEDULING_DELAY,
    PROCESSING,
    TOTAL_DELAY,
    END_TO_END,
    FAILED_ATTEMPTS,
    REPLAYED,
)
READ = (
    BUILD_INFO,
    LEADS,
    STATE,
    SNAPSHOT_AGE,
    LONGEST_WAIT,
    QUEUED_REQUESTS,
    HTTP_REQUESTS,
    LISTENER_EVENTS,
    LISTENER_QUEUE,
    STORE_REQUESTS,
    JOURNAL_EVENTS,
    JOURNAL_UNSNAPPED,
    JOURNAL_BYTES,
    JOURNAL_SEGMENTS,
    JOURNAL_FREE,
    PROBLEM,
    PENDING,
    PARTITIONS,
    POSITION,
    COMPLETED,
    END,
    LAG_RECORDS,
    LAG_SECONDS,
    RECEIVERS,
    AGENTS,
    LEARNED_RATE,
    BATCH_INTERVAL,
    WAITING_BLOCKS,
    WAITING_RECORDS,
    BATCHES,
    PAUSED,
    QUEUED_RECORDS,
    OLDEST,
    COMPLETED_BATCHES,
    COMPLETED_RECORDS,
    REPLAY_BATCHES,
    TIER_READS,
    WAL_BYTES,
    WAL_SEGMENTS,
    WAL_BLOCKS,
    WAL_HELD_BYTES,
    CURSORS,
)
