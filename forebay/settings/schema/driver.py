"""The section ``[driver]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated, Literal

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import (
    Count,
    FunctionName,
    Gain,
    KeptCount,
    ListenerName,
    NonEmptySize,
    PathName,
    PeerUrl,
    PositiveCount,
    PositiveDuration,
    ServiceUrl,
    StoreUrl,
    WebHookUrl,
)
from forebay.settings.schema.section import Section, doc


class DriverSettings(Section, frozen=True, kw_only=True):
    """The process that decides, and runs the job."""

    url: Annotated[ServiceUrl, doc("URL at which this driver listens")] = "http://127.0.0.1:7080"
    urls: Annotated[
        tuple[PeerUrl, ...], doc("URLs of all drivers of the stream, standbys included; if empty, driver.url alone")
    ] = ()
    journal: Annotated[StoreUrl, doc("URL of the folder that holds the journal (if data is set: its folder journal)")]
    batch_interval: Annotated[
        Duration,
        doc('time between two batches; "0s": the next batch begins as soon as records are there and the job is free'),
    ] = Duration(1.0)
    job: Annotated[
        FunctionName | tuple[FunctionName, ...] | None,
        doc(
            '"module:function" of the job, found beside the configuration file, or a list of them: the outputs of each batch, '
            "made in this order",
            example="jobs:process",
        ),
    ] = None
    joins: Annotated[
        tuple[PathName, ...],
        doc(
            "names of the streams whose batches the job gets together with each batch of this stream; they run in the same "
            "driver process with the same batch_interval",
            example=("clicks",),
        ),
    ] = ()
    engine: Annotated[
        Literal["spark", "local"], doc('"spark", or "local": the job runs in the driver process, without Spark')
    ] = "spark"
    job_max_failures: Annotated[
        PositiveCount,
        doc(
            "number of attempts at a batch, job_retry_delay apart, after which it is failed; later attempts follow after "
            "10s, doubling up to 10m"
        ),
    ] = 4
    job_retry_delay: Annotated[Duration, doc("pause between the first job_max_failures attempts at a batch")] = (
        Duration(1.0)
    )
    old_tasks_timeout: Annotated[
        Duration,
        doc(
            "maximum time a retry waits for the end of the cancelled tasks of the attempt before it; after that the retry "
            "fails"
        ),
    ] = Duration(120.0)
    unreadable_retry: Annotated[
        PositiveDuration, doc("pause before a batch with a block that can't be read is tried again")
    ] = Duration(30.0)
    max_queued_batches: Annotated[
        PositiveCount | None,
        doc(
            "maximum number of batches that wait or run beyond the completed ones, one for each interval, plus "
            "concurrent_jobs - 1; if unset, a batch is made only when its job can begin",
            example=4,
        ),
    ] = None
    concurrent_jobs: Annotated[
        PositiveCount, doc("number of batches that run at the same time; they begin in order and may end in any order")
    ] = 1
    batch_history: Annotated[
        KeptCount,
        doc(
            "number of the newest completed batches that the driver lists with their statistics; the history keeps all"
        ),
    ] = 1_000
    window_batches: Annotated[Count, doc("number of past batches that stay readable for batch.window()")] = 0
    window: Annotated[
        Duration,
        doc("longest window by time for batch.windows(); past batches stay readable as long as one needs them"),
    ] = Duration(0.0)
    empty_batches: Annotated[
        Literal["skip", "deliver"],
        doc('result of an interval without blocks: "skip" no batch, "deliver" a batch without records'),
    ] = "skip"
    stop: Annotated[
        Literal["leave", "drain"],
        doc(
            'effect of a stop: "leave" ends after the running job, "drain" drains the receivers and completes all that '
            "was taken in"
        ),
    ] = "leave"
    stop_timeout: Annotated[
        PositiveDuration,
        doc("maximum time of a drain; batches that are not completed then wait for the next driver"),
    ] = Duration(60.0)
    tasks_per_batch: Annotated[
        Count, doc("number of tasks of a batch; 0: Spark's default parallelism, and at least tasks_min")
    ] = 0
    tasks_min: Annotated[PositiveCount, doc("minimum number of tasks of a batch where tasks_per_batch is 0")] = 1
    lease_duration: Annotated[PositiveDuration, doc("time without renewal after which a standby takes the lead")] = (
        Duration(10.0)
    )
    receiver_timeout: Annotated[
        PositiveDuration,
        doc("silence after which a receiver or a host counts as lost; a managed receiver is then started elsewhere"),
    ] = Duration(30.0)
    cursor_timeout: Annotated[
        PositiveDuration,
        doc("how long after its last heartbeat the WAL holds what a query over the intake has not read"),
    ] = Duration(7 * 86_400.0)
    warm_standby: Annotated[
        Literal["auto", "always", "never"],
        doc(
            'when a standby starts Spark: "auto" before it leads if tasks run on its own machine (spark.master = "local[…]"); '
            '"always" before it leads; "never" only when it leads, which takes longer and uses no memory before'
        ),
    ] = "auto"
    cursor_lease: Annotated[
        PositiveDuration, doc("how long after its last heartbeat a cursor stays locked to its user")
    ] = Duration(10.0)
    placing_interval: Annotated[PositiveDuration, doc("managed: time between two decisions on where receivers run")] = (
        Duration(1.0)
    )
    journal_segment_size: Annotated[NonEmptySize, doc("size after which a journal segment is sealed")] = Size(
        64_000_000
    )
    journal_reserve: Annotated[
        Size, doc("free space of the journal's store below which nothing new is taken in; 0B: no limit")
    ] = Size(64_000_000)
    journal_flush_interval: Annotated[
        Duration | None,
        doc(
            "minimum time between two writes of the journal; if unset, 0ms where files are appended to and 100ms on other "
            "stores",
            example=Duration(0.1),
        ),
    ] = None
    snapshot_copy_interval: Annotated[
        Duration, doc("minimum time between two snapshot copies that deletion from the WAL waits for")
    ] = Duration(30.0)
    max_batch_records: Annotated[Count, doc("maximum number of records of a batch, in whole blocks; 0: no limit")] = 0
    max_batch_bytes: Annotated[
        Size, doc("maximum size of a batch as its blocks are stored, in whole blocks; 0B: no limit")
    ] = Size(0)
    backpressure: Annotated[bool, doc("whether receivers take in no more than the job was seen to process")] = False
    backpressure_proportional: Annotated[
        Gain, doc("share of the difference between intake rate and processing rate that is corrected")
    ] = 1.0
    backpressure_integral: Annotated[Gain, doc("share of the accumulated backlog that is corrected")] = 0.2
    backpressure_derivative: Annotated[Gain, doc("share of the change of that difference that is corrected")] = 0.0
    backpressure_min_rate: Annotated[
        PositiveCount, doc("minimum rate of the stream that backpressure sets, in records per second")
    ] = 100
    listeners: Annotated[
        tuple[ListenerName, ...],
        doc('"module:Class" names of subclasses of driver.listeners.Listener that receive events'),
    ] = ()
    web_hook: Annotated[
        WebHookUrl | None, doc("URL to which events are posted as JSON", example="https://pager.example/forebay")
    ] = None
    web_hook_timeout: Annotated[
        PositiveDuration, doc("maximum time of one request to the web hook; it is tried again a few times")
    ] = Duration(5.0)
    listener_queue: Annotated[
        PositiveCount, doc("maximum number of events that wait for a listener; later ones are dropped and counted")
    ] = 10_000
    listener_queue_bytes: Annotated[
        NonEmptySize, doc("maximum size of the events that wait for a listener; later ones are dropped and counted")
    ] = Size(64_000_000)
    metrics_partitions: Annotated[
        PositiveCount,
        doc(
            "maximum number of partitions with series of their own in /metrics; if there are more, each series is of a topic, "
            "and beyond as many topics, of the stream"
        ),
    ] = 1_000

    @property
    def all_urls(self) -> tuple[str, ...]:
        """URLs of the stream's drivers, at least one."""
        return self.urls or (self.url,)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The outputs of each batch, in order; () if none is named."""
        return (self.job,) if isinstance(self.job, str) else self.job or ()
