"""Tables of processes: receivers, managed receivers, hosts with their agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deploy.supervision.verdicts import described
from forebay.messages import ErrorNote, ManagedReceiver, TrackedAgent, TrackedReceiver

if TYPE_CHECKING:
    from rich.console import Group

#: counters of a remote store that do not count requests
_NO_REQUESTS = ("bytes_out", "bytes_in", "seconds")


def request_rates(counts: Mapping[str, int], prefix: str, seconds: str) -> str:
    """Return ``240 requests/min (put 180, get 60), 310 per GB written`` from the counters that begin with ``prefix``.

    ``seconds``: name of the counter with the age of the process; rates are averages since its start. "" without requests.
    """
    kinds = {
        name.removeprefix(prefix): count
        for name, count in counts.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in _NO_REQUESTS
    }
    if not kinds:
        return ""
    per_minute = {kind: round(count * 60 / counts[seconds]) for kind, count in sorted(kinds.items())}
    written = counts.get(f"{prefix}bytes_out", 0)
    per_gigabyte = f", {round(sum(kinds.values()) * 1e9 / written)} per GB written" if written else ""
    which = ", ".join(f"{kind} {count}" for kind, count in per_minute.items())
    return f"{sum(per_minute.values())} requests/min ({which}){per_gigabyte}"


def receivers_table(receivers: Sequence[TrackedReceiver]) -> Group:
    from rich.filesize import decimal

    from deploy.console.table import table

    return table(
        "Receivers",
        ("receiver", "host", "state", "silent", "buffered", "records", "records/s at most", "detail"),
        [
            (
                r.receiver_id,
                r.host,
                r.state,
                _silence(r.silent_seconds),
                decimal(r.buffered_bytes),
                r.records,
                _rate(r.rate),
                "; ".join(
                    filter(
                        None,
                        [
                            r.detail,
                            request_rates(r.counters, "wal_", "wal_seconds"),
                            *(f"{n} {count}" for n, count in r.counters.items() if count and not n.startswith("wal_")),
                            *(_error(e) for e in r.errors),
                        ],
                    )
                ),
            )
            for r in receivers
        ],
    )


def managed_table(managed: Sequence[ManagedReceiver]) -> Group:
    from deploy.console.table import table

    return table(
        "Managed receivers",
        ("receiver", "state", "host", "process", "restarts", "last exit", "detail"),
        [
            (
                r.receiver_id,
                r.state,
                f"{r.host} → {r.moves_to}" if r.moves_to else r.host or "-",
                r.pid or "-",
                r.restarts,
                "-" if r.exit_code is None else described(r.exit_code),
                r.detail,
            )
            for r in managed
        ],
    )


def hosts_table(hosts: Sequence[TrackedAgent]) -> Group:
    from rich.filesize import decimal

    from deploy.console.table import table

    return table(
        "Agents",
        ("host", "url", "state", "silent", "blocks", "used", "free", "load", "requests", "room for", "labels"),
        [
            (
                a.host,
                a.url,
                a.state,
                _silence(a.silent_seconds),
                _blocks(a),
                decimal(a.used_bytes),
                decimal(a.free_bytes),
                f"{a.load:.2f}",
                a.requests,
                f"{a.capacity} receivers" if a.capacity else "-",
                ", ".join(a.labels) or "-",
            )
            for a in hosts
        ],
    )


def _blocks(agent: TrackedAgent) -> str:
    details = [f"{agent.copies} cached copies"] if agent.copies else []
    if agent.damaged_blocks:
        details.append(f"{agent.damaged_blocks} more damaged: run `forebay recover` on that host")
    if agent.undeleted_blocks:
        details.append(f"{agent.undeleted_blocks} cannot be deleted: {agent.undeleted_cause}")
    return f"{agent.blocks} ({', '.join(details)})" if details else str(agent.blocks)


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate else "-"


def _error(error: ErrorNote) -> str:
    times = "" if error.count == 1 else f"{error.count} times, last "
    return f"{error.message} ({times}{error.seconds_ago:.0f} s ago)"


def _silence(seconds: float) -> str:
    return "no heartbeat yet" if seconds < 0 else f"{seconds:.1f} s"
