"""Reading the blocks of a batch, as it happens inside a Spark task: local file, else the agents of its hosts, else the WAL,
else Kafka by exact offsets.

The first tier that answers with bytes that pass is taken: the frame's checksums, the checksum that the journal's handle
names, the block's id and its ranges, and the SHA-256 that the journal names (not of the file that this host's receiver wrote:
docs/SECURITY.md); of Kafka, the topic's id, the number of records and their digest. Reading never lists, locks, recovers or
creates anything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import pyarrow as pa
import urllib3
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from forebay.http.connections import connections
from forebay.kafka.client.access import KafkaAccess
from forebay.model.errors import (
    AccessError,
    CorruptionError,
    ForebayError,
    LostBlockError,
    MissingKeyError,
    NewerVersionError,
    RangeNotHeldError,
    UnreachableError,
    UnreadableBlockError,
)
from forebay.model.records import block_rows, decode_block, to_dataframe
from forebay.model.values import Block, Handle, OffsetRange
from forebay.process.clock import SystemClock
from forebay.security.access import NO_ACCESS, Access
from wal.blocks import StoredBlock, block_of_frame, cached_path, local_path, read_local, read_stored
from wal.digests import check_digest
from wal.frame import aligned
from wal.scan import read_frame
from wal.storage import Storage, StorageOptions, open_storage

Tier = Literal["local", "agent", "wal", "kafka"]
TIERS: tuple[Tier, ...] = ("local", "agent", "wal", "kafka")

#: kinds of a tier's failure that time does not mend
GONE = ("missing", "damaged")
#: requests for one block to its agent; each after the first goes on where the one before broke off
AGENT_REQUESTS_MAX = 3
#: so long a process does not ask an agent that was silent: a lost host costs one time-out, not one for each of its blocks
AGENT_REST_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
#: what a broken connection costs at most of what it had sent
_CHUNK_BYTES = 1 << 17


class BlockReference(msgspec.Struct, frozen=True, gc=False):
    """A block as a task needs to know it: small, and can be pickled. ``host``, if ``local``, and ``other_hosts`` keep a copy of
    it."""

    id: str
    stream: str
    ranges: tuple[OffsetRange, ...]
    records: int
    handle: Handle
    host: str
    local: bool
    headers: bool = False
    other_hosts: tuple[str, ...] = ()
    sha256: bytes | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, block: Block) -> BlockReference:
        meta = block.meta
        return cls(
            meta.id,
            meta.stream,
            meta.ranges,
            meta.records,
            block.handle,
            meta.host,
            block.local,
            meta.headers,
            block.other_hosts,
            meta.sha256,
        )

    def also_at(self, hosts: tuple[str, ...]) -> BlockReference:
        """The same with ``hosts`` among those that keep a copy."""
        more = tuple(host for host in hosts if host not in self.hosts)
        return msgspec.structs.replace(self, other_hosts=self.other_hosts + more) if more else self

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that keep a copy, the receiver's first."""
        return (self.host, *self.other_hosts) if self.local else self.other_hosts

    @property
    def in_wal(self) -> bool:
        return bool(self.handle.path)


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the tasks of a batch may read. Can be pickled.

    ``storage``: what the stores' clients are given (``Settings.storage``). ``blocks_directory``: where a host keeps its
    copies, the same path on every host. ``agent_urls``: host → url of its agent. ``lost``: labels of ranges whose loss an
    operator has accepted: they are skipped. ``headers``: every batch gets a headers column, also one from a block without.
    ``key_file``: where a task finds the keys of encrypted blocks (``wal.encryption``), the same path on every host.
    ``access``: what agents are shown. ``store_back``: what had to be read from the WAL is given to the agent of the task's host.
    ``kafka``: None where the Kafka tier is switched off; ``topic_ids``: ``life_key`` of each range → the topic's id in that life.
    """

    wal_url: str
    storage: StorageOptions = {}
    blocks_directory: str | None = None
    agent_urls: Mapping[str, str] = {}
    headers: bool = False
    tiers: tuple[Tier, ...] = TIERS
    lost: frozenset[str] = frozenset()
    verify_digests: bool = False
    agent_timeout_seconds: float = 5.0
    key_file: str | None = None
    kafka: KafkaAccess | None = None
    topic_ids: Mapping[str, str] = {}
    access: Access = NO_ACCESS
    store_back: bool = False


def incarnation_key(range_: OffsetRange) -> str:
    """Names the life of ``range_`` in ``ReadPlan.topic_ids``."""
    return f"{range_.topic}/{range_.partition}/{range_.incarnation}"


@dataclass(frozen=True, slots=True)
class TierFailure:
    """Why a tier was passed over, or (not stored back) why this host's agent has no copy of what the WAL gave.

    ``kind``: missing | damaged | newer | locked | refused | unreachable | failed | not stored back; locked: its key is not at
    hand; refused: the agent wants another token."""

    tier: Tier
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class BlockRead:
    """A block's records: batches of ``DATAFRAME_SCHEMA`` in the order of its ranges, the tier that gave them (None if
    all its ranges were accepted as lost), how many ranges that were, and the tiers that failed before."""

    batches: tuple[pa.RecordBatch, ...]
    tier: Tier | None
    ranges: int
    failures: tuple[TierFailure, ...] = ()


class TierCounts(msgspec.Struct, frozen=True):
    """Ranges read by tier, and tiers that failed by ``"<tier>: <kind>"``. Counted for each read: a batch that its job
    uses twice counts twice."""

    ranges: dict[str, int] = {}
    failures: dict[str, int] = {}

    @classmethod
    def of(cls, read: BlockRead) -> TierCounts:
        failures: dict[str, int] = {}
        for failure in read.failures:
            name = f"{failure.tier}: {failure.kind}"
            failures[name] = failures.get(name, 0) + 1
        return cls({read.tier: read.ranges} if read.tier else {}, failures)

    def items(self) -> Iterator[tuple[str, int]]:
        """All counts, as a status shows them: ``("local", 12), ("agent: unreachable", 1)``."""
        yield from self.ranges.items()
        yield from self.failures.items()

    def __add__(self, other: TierCounts) -> TierCounts:
        return TierCounts(_sum(self.ranges, other.ranges), _sum(self.failures, other.failures))


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


# ---- one block -------------------------------------------------------------------------------------------------------


def read_block(reference: BlockReference, plan: ReadPlan) -> BlockRead:
    """The records of one block, from the first tier that has them.

    Raises UnreadableBlockError, which names the block, each of its ranges and each tier's reason, if none has (INV-5):
    LostBlockError if another try can't find it either.
    """
    wanted = [range_ for range_ in reference.ranges if range_.label not in plan.lost]
    if not wanted:
        return BlockRead((), None, 0)
    failures: list[TierFailure] = []
    for tier, host in _places(reference, plan):
        try:
            if tier == "kafka":
                stored, batches = None, _from_kafka(reference, plan, wanted)
            else:
                stored = _from_agent(reference, plan, host) if tier == "agent" else _STORED[tier](reference, plan)
                where = f"{tier} {host}".strip()
                batches = (
                    None if stored is None else _records(reference, plan, stored, where, by_digest=tier != "local")
                )
            if batches is None:
                continue
        except FileNotFoundError:
            failures.append(TierFailure(tier, "missing", "it is not there"))
        except RangeNotHeldError as error:
            failures.append(TierFailure(tier, "missing", str(error)))
        except CorruptionError as error:
            failures.append(TierFailure(tier, "damaged", str(error)))
        except NewerVersionError as error:
            failures.append(TierFailure(tier, "newer", str(error)))
        except MissingKeyError as error:
            failures.append(TierFailure(tier, "locked", str(error)))
        except AccessError as error:
            failures.append(TierFailure(tier, "refused", str(error)))
        except (urllib3.exceptions.HTTPError, ConnectionError, UnreachableError) as error:
            failures.append(TierFailure(tier, "unreachable", str(error)))
        except (ForebayError, OSError) as error:
            failures.append(TierFailure(tier, "failed", str(error)))
        else:
            if tier == "wal" and stored is not None and plan.store_back:
                failures += _store_back(stored, plan)
            return BlockRead(batches, tier, len(wanted), tuple(failures))
    lost = all(failure.kind in GONE for failure in failures)
    raise (LostBlockError if lost else UnreadableBlockError)(
        f"no tier can read block {reference.id} with {', '.join(range_.label for range_ in wanted)}: "
        + ("; ".join(f"{f.tier}: {f.detail}" for f in failures) or "no tier keeps it")
    )


def _store_back(stored: StoredBlock, plan: ReadPlan) -> list[TierFailure]:
    """This host's agent is given what had to be read from the WAL; what hinders that costs no more than the next read of it."""
    url = plan.agent_urls.get(this_host())
    if url is None:
        return []
    resting: dict[str, float] = _per_process("agents that took no copy", dict)  # url → until when none is offered
    if resting.get(url, 0.0) > _clock.monotonic():
        return []
    from wal.block_copies import give_copy

    try:
        give_copy(
            _pool(url, plan.access),
            url,
            stored.meta,
            stored.payload,
            timeout_seconds=plan.agent_timeout_seconds,
            headers=plan.access.headers(),
        )
    except ForebayError as error:
        resting[url] = _clock.monotonic() + AGENT_REST_SECONDS
        return [TierFailure("agent", "not stored back", str(error))]
    return []


def _places(reference: BlockReference, plan: ReadPlan) -> Iterator[tuple[Tier, str]]:
    """Where the block is looked for, in order: tiers, and of the agents' each host that keeps a copy."""
    for tier in plan.tiers:
        if tier == "agent":
            yield from ((tier, host) for host in reference.hosts)
        else:
            yield tier, ""


def _records(
    reference: BlockReference, plan: ReadPlan, stored: StoredBlock, name: str, *, by_digest: bool
) -> tuple[pa.RecordBatch, ...]:
    """The rows of ``stored`` that the plan wants, if it is the very block that the journal names. ``by_digest``: as
    :func:`check_same`."""
    where = f"{name} copy of block {reference.id}"
    check_same(reference, stored, where, by_digest=by_digest)
    payload = _plain(stored, plan, where)
    decoded = decode_block(payload, stored.meta, verify_digests=plan.verify_digests, path=where)
    return tuple(
        to_dataframe(batch, range_.topic, plan.headers)
        for range_, batches in decoded
        if range_.label not in plan.lost
        for batch in batches
    )


def _plain(stored: StoredBlock, plan: ReadPlan, where: str) -> Any:
    """The payload, opened if it is sealed. The keys are read in this process, and once more if one is missing: it may have been
    added since. They never travel in a plan."""
    if stored.meta.key_id is None:
        return stored.payload
    from wal.encryption import load_keys, plain_payload

    name = f"keys of {plan.key_file}"
    try:
        return plain_payload(stored.meta, stored.payload, _per_process(name, lambda: load_keys(plan.key_file)), where)
    except MissingKeyError:
        _forget(name)
        return plain_payload(stored.meta, stored.payload, _per_process(name, lambda: load_keys(plan.key_file)), where)


def check_same(reference: BlockReference, stored: StoredBlock, where: str, *, by_digest: bool = True) -> None:
    """Raises CorruptionError if ``stored``, read at ``where``, is not the very block that the journal names. ``by_digest``: False
    for bytes that no other user can write, whose checksum is enough (docs/SECURITY.md)."""
    if stored.meta.id != reference.id or stored.meta.stream != reference.stream:
        raise CorruptionError(where, 0, f"it holds block {stored.meta.id} of stream {stored.meta.stream}")
    if stored.checksum != reference.handle.checksum:
        raise CorruptionError(where, 0, "its checksum is not the one that the journal names")
    if stored.meta.ranges != reference.ranges or stored.meta.headers != reference.headers:
        raise CorruptionError(where, 0, "its ranges are not the ones that the journal names")
    if by_digest:
        check_digest(reference.sha256, stored.payload, where)


def stored_copy(reference: BlockReference, plan: ReadPlan, tier: Tier) -> StoredBlock | None:
    """The block as ``tier`` keeps it, verified, its payload as it is; None where the tier does not apply. For who writes it
    again. Raises FileNotFoundError, CorruptionError, NewerVersionError, StoreError, OSError; of agents ForebayError, which says
    of each host that was asked why it gave none."""
    if tier == "agent":
        return _from_any_agent(reference, plan)
    stored = _STORED[tier](reference, plan)
    if stored is not None:
        check_same(reference, stored, f"{tier} copy of block {reference.id}")
    return stored


# ---- the tiers: each gives what is verified, None where it does not apply, or raises ---------------------------------


def _from_local(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    if plan.blocks_directory is None or not reference.hosts:
        return None
    try:
        try:
            return read_local(local_path(plan.blocks_directory, reference.stream, reference.id))
        except FileNotFoundError:
            given = cached_path(plan.blocks_directory, reference.stream, reference.id)
            stored = read_local(given)  # another process sent it
            check_digest(reference.sha256, stored.payload, str(given))
            return stored
    except FileNotFoundError:
        if this_host() not in reference.hosts:
            return None  # it lies on another host: no failure
        raise


def this_host() -> str:
    """The name that services on this machine take if none is configured."""
    return socket.gethostname()


def _from_any_agent(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    reasons = []
    for host in reference.hosts:
        try:
            stored = _from_agent(reference, plan, host)
            if stored is not None:
                check_same(reference, stored, f"agent copy of block {reference.id}")
                return stored
        except FileNotFoundError:
            reasons.append(f"{host} has none")
        except (ForebayError, OSError, urllib3.exceptions.HTTPError) as error:  # another host may have it whole
            reasons.append(f"{host}: {error}")
    if reasons:
        raise UnreachableError("; ".join(reasons))
    return None


def _from_agent(reference: BlockReference, plan: ReadPlan, host: str) -> StoredBlock | None:
    url = plan.agent_urls.get(host)
    if url is None and not reference.in_wal:  # of the few places that there are, none is passed over in silence
        raise UnreachableError(f"host {host} keeps a copy, and its agent has not been heard of lately")
    if url is None:
        return None
    target = f"{url.rstrip('/')}/v1/blocks/{quote(reference.stream)}/{quote(reference.id)}"
    download = _Download(target, aligned(reference.handle.length), plan.agent_timeout_seconds, plan.access)
    resting: dict[str, float] = _per_process("silent agents", dict)  # url → until when nothing is asked there
    if resting.get(url, 0.0) > _clock.monotonic():
        raise UnreachableError(f"{url} was silent less than {AGENT_REST_SECONDS:g} s ago")
    try:
        body = download.fetch()
    except urllib3.exceptions.HTTPError:
        resting[url] = _clock.monotonic() + AGENT_REST_SECONDS
        raise
    return read_stored(body, target)


def _pool(url: str, access: Access) -> urllib3.PoolManager:
    files = (access.ca_file, access.cert_file, access.key_file)
    pool: urllib3.PoolManager = _per_process(
        f"agents {url.partition(':')[0]} {files}", lambda: connections(url, access)
    )
    return pool


def _may_go_on(error: BaseException) -> bool:
    """Whether the agent may well answer at once: its connection broke, or it is being started anew. One that is silent costs
    its time-out each time."""
    return isinstance(error, urllib3.exceptions.HTTPError) and not isinstance(error, urllib3.exceptions.TimeoutError)


class _Download:
    """The whole body of ``url``. A connection that breaks is tried again from the byte where it broke."""

    def __init__(self, url: str, length_max: int, timeout_seconds: float, access: Access) -> None:
        self._url = url
        self._length_max = length_max
        self._access = access
        self._timeout = urllib3.Timeout(connect=min(timeout_seconds, _CONNECT_SECONDS), read=timeout_seconds)
        self._body: Any = None
        self._received = 0

    def fetch(self) -> Any:
        """A ``pa.Buffer``. Raises FileNotFoundError, UnreachableError, CorruptionError, urllib3's HTTPError."""
        Retrying(retry=retry_if_exception(_may_go_on), stop=stop_after_attempt(AGENT_REQUESTS_MAX), reraise=True)(
            self._request, _pool(self._url, self._access)
        )
        if self._received != self._body.size:
            raise self._damaged("the answer ended early")
        return self._body

    def _request(self, pool: urllib3.PoolManager) -> None:
        with pool.request(
            "GET",
            self._url,
            headers={"range": f"bytes={self._received}-", **self._access.headers()},
            timeout=self._timeout,
            redirect=False,
            preload_content=False,
        ) as response:
            if response.status == 404:
                raise FileNotFoundError(self._url)
            if response.status in (401, 403):
                raise AccessError(
                    f"{self._url}: HTTP {response.status}: the agent does not know this token, or not as one of role "
                    f"{self._access.role}: add its line to the token file of the agent's host"
                )
            if response.status >= 500:
                raise UnreachableError(f"{self._url}: HTTP {response.status}")  # too many ask it, or its disk fails
            length = self._whole_length(response)
            if self._body is None:
                self._body = pa.allocate_buffer(length)
            target = memoryview(self._body).cast("B")
            for chunk in response.stream(_CHUNK_BYTES):
                if self._received + len(chunk) > len(target):
                    raise self._damaged("the agent sent more than the block's length")
                target[self._received : self._received + len(chunk)] = chunk
                self._received += len(chunk)

    def _whole_length(self, response: urllib3.BaseHTTPResponse) -> int:
        """The length of the whole block, from an answer that must begin where the last one ended."""
        unit, _, rest = response.headers.get("content-range", "").partition(" ")
        span, _, total = rest.partition("/")
        start = span.partition("-")[0]
        if response.status != 206 or unit != "bytes" or not total.isdecimal() or start != str(self._received):
            raise self._damaged(f"the agent answered with HTTP {response.status}, not with the bytes asked for")
        length = int(total)
        if length > self._length_max or (self._body is not None and length != self._body.size):
            raise self._damaged(f"{length} bytes are not the length of the block")
        return length

    def _damaged(self, reason: str) -> CorruptionError:
        return CorruptionError(self._url, self._received, reason)


def _from_wal(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    if not reference.in_wal:
        return None
    storage: Storage = _per_process(plan.wal_url, lambda: open_storage(plan.wal_url, plan.storage))
    return block_of_frame(read_frame(storage, reference.handle), reference.handle.path)


def _from_kafka(
    reference: BlockReference, plan: ReadPlan, wanted: Sequence[OffsetRange]
) -> tuple[pa.RecordBatch, ...] | None:
    if plan.kafka is None:
        return None
    from forebay.kafka.consume.ranges import Wanted, read_ranges  # loads librdkafka, which few tasks ever need

    asked = [Wanted(range_, plan.topic_ids.get(incarnation_key(range_), "")) for range_ in wanted]
    return tuple(
        to_dataframe(batch, rows.tp.topic, plan.headers)
        for rows in read_ranges(plan.kafka, asked, reference.headers)
        for batch in block_rows(rows, reference.headers)
    )


_STORED: dict[Tier, Callable[[BlockReference, ReadPlan], StoredBlock | None]] = {
    "local": _from_local,
    "wal": _from_wal,
}

_opened: dict[tuple[int, str], Any] = {}
_clock = SystemClock()


def _per_process(name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` makes, once per process: Spark's workers fork, and no connection or client survives that."""
    key = (os.getpid(), name)
    if key not in _opened:
        _opened[key] = make()
    return _opened[key]


def _forget(name: str) -> None:
    _opened.pop((os.getpid(), name), None)
