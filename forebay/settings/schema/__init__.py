"""``forebay.toml`` as values: every key with its type, bounds, default and description, one module for each section."""

from __future__ import annotations

from forebay.settings.schema.agent import AgentSettings
from forebay.settings.schema.constraints import NO_WAL
from forebay.settings.schema.dead_letters import DeadLetterSettings
from forebay.settings.schema.driver import DriverSettings
from forebay.settings.schema.kafka import KafkaSettings
from forebay.settings.schema.log import LogSettings
from forebay.settings.schema.receiver import MANAGED_COUNT_MAX, METRICS_PORTS, ReceiverSettings
from forebay.settings.schema.section import Section
from forebay.settings.schema.security import SecuritySettings
from forebay.settings.schema.settings import LoadedSettings, Settings
from forebay.settings.schema.spark import SparkSettings
from forebay.settings.schema.traces import TraceSettings
from forebay.settings.schema.wal import WalSettings

__all__ = [
    "MANAGED_COUNT_MAX",
    "METRICS_PORTS",
    "NO_WAL",
    "AgentSettings",
    "DeadLetterSettings",
    "DriverSettings",
    "KafkaSettings",
    "LoadedSettings",
    "LogSettings",
    "ReceiverSettings",
    "Section",
    "SecuritySettings",
    "Settings",
    "SparkSettings",
    "TraceSettings",
    "WalSettings",
]
