"""What a recovery plan needs besides journal and WAL: Kafka, the agents, and the copies on this host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.console.driver_requests import ask_status
from forebay.model.errors import ForebayError, StoreError, UsageError
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind

if TYPE_CHECKING:
    from driver.journal.state import State
    from recovery.copies import CopySource, CopySources, ReadRanges
    from recovery.examination import Examination
    from recovery.plan import CopiesView, KafkaView
    from wal.storage import Storage

#: maximum time for an answer of Kafka, an agent or the driver; a plan is made without those that do not answer
ANSWER_SECONDS = 3.0


class Surroundings:
    """Kafka, the agents and this host's copies, as a plan sees them.

    ``kafka``: whether Kafka is asked. ``agents``: hosts and URLs of agents, in addition to those that are found.
    """

    def __init__(self, settings: Settings, *, kafka: bool, agents: Sequence[tuple[str, str]] = ()) -> None:
        self._settings = settings
        self._ask_kafka = kafka
        self._named_agents = dict(agents)
        self.agents: dict[str, str] = {}
        self.silent: list[str] = []

    def find_agents(self) -> None:
        """Find the agents that answer: those given, this host's, and those that a running driver knows."""
        from forebay.http.client import Client
        from forebay.security.access import Access
        from wal.reading import this_host

        urls = {self._settings.agent.host or this_host(): self._settings.agent.url}
        with contextlib.suppress(ForebayError):  # the driver is stopped, as it should be for --apply
            urls.update({agent.host: agent.url for agent in ask_status(self._settings, ANSWER_SECONDS).agents})
        for host, url in {**urls, **self._named_agents}.items():
            client = Client(url, ANSWER_SECONDS, Access.of(self._settings, "operator"))
            try:
                client.request("GET", "/v1/status")
                self.agents[host] = url
            except ForebayError as error:
                self.silent.append(f"{host}: {error}")
            finally:
                client.close()

    def kafka(self, state: State) -> KafkaView:
        """Return what Kafka holds and has committed of the stream, or why it is unknown."""
        from forebay.kafka.client.admin import KafkaAdmin
        from recovery.plan import KafkaFacts, KafkaView, kafka_view

        if not self._ask_kafka:
            return KafkaView("not asked, because of --no-kafka")
        if not source_kind(self._settings).has_groups:
            return KafkaView("the stream has a custom source instead of Kafka")
        try:
            with KafkaAdmin(self._settings.kafka.options, client_id="forebay-recover") as admin:
                admin.check(ANSWER_SECONDS)
                there = admin.topics()
                wanted = [p.tp for p in state.partitions.values() if p.partition < there.get(p.topic, 0)]
                return kafka_view(
                    state,
                    self._settings.group,
                    KafkaFacts(
                        admin.committed(self._settings.group, wanted),
                        admin.watermarks(wanted),
                        admin.topic_ids({tp.topic for tp in wanted}),
                    ),
                )
        except ForebayError as error:
            return KafkaView(str(error))

    def copies(self, state: State) -> CopiesView:
        """Count this host's local copies; reads only the directory."""
        from recovery.damaged_copies import copy_names
        from recovery.plan import CopiesView
        from wal.blocks import BLOCK_SUFFIX
        from wal.blocks.set_aside import block_of
        from wal.reading import this_host

        folder = Path(self._settings.agent.blocks, state.stream)
        agents = tuple(sorted(self.agents))
        try:
            names = sorted(copy_names(self._settings.agent.blocks, state.stream))
        except StoreError as error:  # a finding: --apply may have done its work already
            return CopiesView(str(folder), 0, 0, 0, agents, tuple(self.silent), unreadable=str(error))
        files = {name.removesuffix(BLOCK_SUFFIX) for name in names if name.endswith(BLOCK_SUFFIX)}
        host = self._settings.agent.host or this_host()
        named = {b.id for b in state.blocks.values() if b.local and b.meta.host == host}
        return CopiesView(
            directory=str(folder),
            found=len(named & files),
            absent=len(named - files),
            stray=len(files - state.blocks.keys()),
            agents=agents,
            silent=tuple(self.silent),
            damaged=tuple(name for name in names if block_of(name) is not None),
        )

    def sources(
        self, examined: Examination, wal: Storage, kafka: KafkaView, read_ranges: ReadRanges | None
    ) -> CopySources:
        """Return the places where a block may be found again, in the order in which they are searched."""
        from forebay.security.access import Access
        from recovery.copies import CopySources, DamagedCopies, KafkaCopies, NoKafka, TierCopies, WalCopies
        from recovery.examination import topic_ids
        from wal.blocks.encryption import load_keys
        from wal.reading import ReadPlan

        assert examined.state is not None
        plan = ReadPlan(
            wal_url=self._settings.wal.url,
            storage=self._settings.storage,
            blocks_directory=self._settings.agent.blocks,
            agent_urls=self.agents,
            access=Access.of(self._settings, "operator"),
        )
        found: list[CopySource] = [
            WalCopies(wal, [copy for segment in examined.segments for copy in segment.copies]),
            TierCopies("local", plan),
            DamagedCopies(self._settings.agent.blocks),
            TierCopies("agent", plan),
        ]
        if kafka.unreachable or read_ranges is None:
            found.append(NoKafka(kafka.unreachable or "kafka.read_blocks is off"))
        else:
            ids = topic_ids(examined.state, examined.state.blocks.values())
            keys = load_keys(self._settings.wal.key_file)
            found.append(KafkaCopies(read_ranges, topic_ids=ids, compression=self._settings.wal.compression, keys=keys))
        return CopySources(found)


def agent_option(text: str) -> tuple[str, str]:
    """Return host and URL of ``h1=http://10.0.0.1:7081``. Raises UsageError."""
    host, separator, url = text.partition("=")
    if not host or not separator or not url.startswith(("http://", "https://")):
        raise UsageError(f"--agent {text!r}: write HOST=URL, as in h1=http://10.0.0.1:7081")
    return host, url


def range_reader(settings: Settings) -> ReadRanges | None:
    """Return the reader of exact offset ranges from Kafka; None if ``kafka.read_blocks`` is off."""

    access = source_kind(settings).kafka_access()
    if access is None:
        return None
    from forebay.kafka.consume.block_ranges import read_ranges

    return lambda wanted, headers: read_ranges(access, wanted, headers)
