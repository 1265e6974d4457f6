"""All sections of ``forebay.toml``, and the keys above them."""

from typing import Annotated, Any

import msgspec

from forebay.settings.schema.agent import AgentSettings
from forebay.settings.schema.constraints import KAFKA_SOURCE, NO_WAL, DataFolder, PathName
from forebay.settings.schema.dead_letters import DeadLetterSettings
from forebay.settings.schema.driver import DriverSettings
from forebay.settings.schema.kafka import KafkaSettings
from forebay.settings.schema.log import LogSettings
from forebay.settings.schema.receiver import ReceiverSettings
from forebay.settings.schema.section import Section, doc
from forebay.settings.schema.security import SecuritySettings
from forebay.settings.schema.spark import SparkSettings
from forebay.settings.schema.traces import TraceSettings
from forebay.settings.schema.wal import WalSettings


class Settings(Section, frozen=True, kw_only=True):
    """Keys above the first section."""

    stream: Annotated[PathName, doc("name of the stream: of its folders in WAL and journal, and of its consumer group")]
    data: Annotated[
        DataFolder | None,
        doc(
            "path of one folder for all that is stored: wal.url, driver.journal, agent.blocks and spark.class_archive are its "
            "folders wal, journal, blocks and classes unless they are set",
            example="/var/lib/forebay",
        ),
    ] = None
    kafka: KafkaSettings = KafkaSettings()  # may be left out with a custom source
    wal: WalSettings
    receiver: ReceiverSettings = ReceiverSettings()
    driver: DriverSettings
    agent: AgentSettings
    spark: SparkSettings = SparkSettings()
    storage: Annotated[
        dict[str, dict[str, Any]],
        doc(
            "options of a store's client, in a section per URL scheme: [storage.s3], [storage.hdfs], … "
            "(docs/operations/stores.md)"
        ),
    ] = msgspec.field(default_factory=dict)
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    security: SecuritySettings = SecuritySettings()
    log: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()

    def __repr__(self) -> str:
        """Without the options of Kafka, Spark and stores, which may hold passwords."""
        return f"<Settings of stream {self.stream}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("of stream", self.stream)]

    @property
    def custom_source(self) -> bool:
        """Whether receivers read from a custom source, not from Kafka. For rules between keys; other code uses
        ``forebay.sources.kind.source_kind``."""
        return self.receiver.source != KAFKA_SOURCE

    @property
    def has_wal(self) -> bool:
        return self.wal.url != NO_WAL

    @property
    def group(self) -> str:
        """The consumer group that shows how far the intake is."""
        return self.kafka.group or f"forebay.{self.stream}"

    @property
    def completed_group(self) -> str:
        """The second consumer group, which shows how far batches are completed."""
        return f"{self.group}.completed"


class LoadedSettings(Settings, frozen=True, kw_only=True):
    """Settings as they were read. ``origins``: key → name of the file or of the environment variable that sets it."""

    origins: dict[str, str] = msgspec.field(default_factory=dict)
