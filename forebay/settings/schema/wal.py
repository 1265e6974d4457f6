"""The section ``[wal]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated, Literal

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import Count, NonEmptySize, PositiveDuration, SecretFile, WalUrl
from forebay.settings.schema.section import Section, doc


class WalSettings(Section, frozen=True, kw_only=True):
    """The durable log of the records that receivers took in."""

    url: Annotated[
        WalUrl,
        doc(
            "URL of the folder that holds the WAL (if data is set: its folder wal), on a disk of its own if possible, because "
            'each block is synced to it; "none": no WAL, and the only copies of a block are those on hosts\' disks'
        ),
    ]
    segment_size: Annotated[NonEmptySize, doc("size after which a WAL segment is sealed")] = Size(128_000_000)
    segment_age: Annotated[PositiveDuration, doc("age after which a WAL segment is sealed")] = Duration(300.0)
    retention: Annotated[
        Duration,
        doc(
            "rewind horizon: how long completed batches stay readable; 0s: they are deleted as soon as they are completed"
        ),
    ] = Duration(7 * 86_400.0)
    retention_size: Annotated[
        Size, doc("size of the WAL above which the oldest completed batches are deleted earlier; 0B: no limit")
    ] = Size(10_000_000_000)
    retention_blocks: Annotated[
        Count,
        doc(
            "number of blocks in the WAL above which the oldest completed batches are deleted earlier, because the driver "
            "holds 1 to 2 KB of memory for each; 0: no limit"
        ),
    ] = 50_000
    retention_free: Annotated[
        Size,
        doc("free space of the WAL's store below which the oldest completed batches are deleted earlier; 0B: no limit"),
    ] = Size(2_000_000_000)
    reserve: Annotated[
        Size, doc("free space of the WAL's store that receivers leave for completing and deleting batches; 0B: none")
    ] = Size(64_000_000)
    cleanup_interval: Annotated[
        PositiveDuration | None,
        doc(
            "time between two rounds of deleting from the WAL; if unset, 2s where files are appended to and 60s on other "
            "stores",
            example=Duration(2.0),
        ),
    ] = None
    compression: Annotated[Literal["none", "lz4", "zstd"], doc("compression of the Arrow buffers inside a block")] = (
        "none"
    )
    key_file: Annotated[
        SecretFile | None,
        doc(
            "path of the file with the keys that encrypt blocks: lines of a key id and 32 bytes in base64, the current key "
            "first; if unset, blocks are not encrypted",
            example="/etc/forebay/wal.keys",
        ),
    ] = None
    flush_interval: Annotated[
        Duration | None,
        doc(
            "minimum time between two writes of one receiver; if unset, 0ms where files are appended to and 250ms on other "
            "stores",
            example=Duration(0.25),
        ),
    ] = None
