"""The section ``[agent]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated

from msgspec import Meta

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import (
    Count,
    Folder,
    Label,
    NonEmptySize,
    PathName,
    PositiveDuration,
    ServiceUrl,
)
from forebay.settings.schema.section import Section, doc


class AgentSettings(Section, frozen=True, kw_only=True):
    """The process of each host that serves its local copies of blocks, and runs managed receivers."""

    url: Annotated[ServiceUrl, doc("URL at which this agent listens")] = "http://127.0.0.1:7081"
    blocks: Annotated[
        Folder,
        doc("path of the folder that holds this host's local copies of blocks (if data is set: its folder blocks)"),
    ]
    quota: Annotated[NonEmptySize, doc("maximum size of the local copies")] = Size(10_000_000_000)
    host: Annotated[
        PathName | None,
        doc("name of this host, as Spark knows it; if unset, this machine's name", example="worker-1"),
    ] = None
    heartbeat_interval: Annotated[PositiveDuration, doc("time between two heartbeats to the driver")] = Duration(1.0)
    connections_max: Annotated[
        int,
        Meta(ge=2),
        doc("maximum number of authenticated connections; the same number of unauthenticated ones is allowed"),
    ] = 512
    idle_timeout: Annotated[
        PositiveDuration, doc("maximum time a connection may make no progress on a block before it is closed")
    ] = Duration(30.0)
    drain_timeout: Annotated[Duration, doc("maximum time a stopping agent takes to finish requests under way")] = (
        Duration(10.0)
    )
    store_back: Annotated[
        bool, doc("whether an agent keeps a copy of what a task on its host had to read from the WAL")
    ] = False
    labels: Annotated[tuple[Label, ...], doc("labels of this host as key=value, for receiver.preferred_hosts")] = ()
    capacity: Annotated[Count, doc("maximum number of managed receivers on this host; 0: none")] = 4
