"""The section ``[receiver]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import (
    KAFKA_SOURCE,
    Count,
    NonEmptySize,
    PathName,
    PositiveCount,
    PositiveDuration,
    PreferredHost,
    ServiceUrl,
    SourceName,
    allowed,
)
from forebay.settings.schema.section import Section, doc

#: receivers that one driver keeps at most
MANAGED_COUNT_MAX = 1000
#: number of ports, from that of receiver.metrics_url on, that a receiver tries for a free one
METRICS_PORTS = 100


class ReceiverSettings(Section, frozen=True, kw_only=True):
    """The processes that read Kafka."""

    mode: Annotated[
        Literal["static", "managed"],
        doc(
            '"static": systemd or `forebay up` runs the receivers; "managed": agents run them where the driver places them'
        ),
    ] = "static"
    count: Annotated[
        PositiveCount,
        doc(
            "number of receivers that `forebay up` runs on this machine; managed: number of receivers of the stream, over "
            "all hosts"
        ),
    ] = 1
    host: Annotated[
        PathName | None, doc("name of this host; if unset, agent.host, or else this machine's name", example="worker-1")
    ] = None
    preferred_hosts: Annotated[
        tuple[PreferredHost, ...], doc("managed: hosts, or their labels as key=value, the best first")
    ] = ()
    hosts_wait: Annotated[
        Duration, doc("managed: maximum time the driver waits at its start for a separate host for each receiver")
    ] = Duration(30.0)
    moves_max: Annotated[Count, doc("managed: maximum number of receivers that move to a better host at a time")] = 1
    start_timeout: Annotated[
        Duration,
        doc(
            "managed: maximum time from the start of a receiver to its first heartbeat; at least driver.receiver_timeout"
        ),
    ] = Duration(90.0)
    host_failures_max: Annotated[
        PositiveCount,
        doc("managed: number of failures in a row after which a receiver is started on another host with room"),
    ] = 3
    avoid_host: Annotated[
        Duration, doc("managed: how long a receiver avoids a host where it failed that often, or hung")
    ] = Duration(600.0)
    block_interval: Annotated[PositiveDuration, doc("age after which the open block is sealed")] = Duration(0.2)
    block_size: Annotated[NonEmptySize, doc("size after which the open block is sealed")] = Size(16_000_000)
    source: Annotated[SourceName, doc('"kafka", or "module:Class" of a custom source (SOURCES.md)')] = KAFKA_SOURCE
    source_options: Annotated[dict[str, Any], doc("arguments of the custom source")] = msgspec.field(
        default_factory=dict
    )
    memory: Annotated[
        Size,
        doc(
            "maximum size of the records that a receiver holds: open block, blocks being stored, blocks waiting for the "
            "driver's answer"
        ),
    ] = Size(64_000_000)
    poll_records: Annotated[PositiveCount, doc("maximum number of records of one poll")] = 20_000
    store_timeout: Annotated[
        PositiveDuration, doc("how long writes to the WAL may fail before the receiver exits with 1")
    ] = Duration(30.0)
    drain_timeout: Annotated[PositiveDuration, doc("maximum time a receiver takes to drain when it is stopped")] = (
        Duration(20.0)
    )
    heartbeat_interval: Annotated[PositiveDuration, doc("time between two heartbeats to the driver")] = Duration(1.0)
    report_timeout: Annotated[PositiveDuration, doc("maximum time the driver may take to answer a report")] = Duration(
        10.0
    )
    reclaim_delay: Annotated[
        PositiveDuration, doc("pause before a partition is claimed again after a refused claim or report")
    ] = Duration(0.5)
    local_copies: Annotated[bool, doc("whether blocks are also written to agent.blocks of this host")] = True
    copies: Annotated[
        int,
        Meta(ge=1, le=2),
        allowed("allowed are 1 and 2"),
        doc(
            "number of hosts that hold a block, 1 or 2; without a WAL, a block is reported when all of them hold it; with a "
            "WAL, another host gets a copy if it can take one"
        ),
    ] = 1
    max_rate: Annotated[Count, doc("maximum number of records per second of one receiver; 0: no limit")] = 0
    max_rate_bytes: Annotated[Size, doc("maximum size of keys and values per second of one receiver; 0B: no limit")] = (
        Size(0)
    )
    max_rate_per_partition: Annotated[
        Count, doc("maximum number of records per second of one partition; 0: no limit")
    ] = 0
    max_rate_per_partition_bytes: Annotated[
        Size, doc("maximum size of keys and values per second of one partition; 0B: no limit")
    ] = Size(0)
    min_rate_per_partition: Annotated[
        PositiveCount, doc("number of records per second that each partition gets, however low the learned rate is")
    ] = 1
    metrics_url: Annotated[
        ServiceUrl | None,
        doc(
            "URL at which a receiver serves /metrics; if its port is in use, as by another receiver of the host, one of the next "
            "99; if unset, receivers serve no metrics",
            example="http://127.0.0.1:7100",
        ),
    ] = None
    initial_rate: Annotated[
        Count,
        doc("maximum number of records per second of one receiver until backpressure has learned a rate; 0: no limit"),
    ] = 0
