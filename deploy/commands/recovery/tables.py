"""What ``forebay recover`` prints: its plan as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

    from recovery.damaged_copies import DamagedCopiesPlan
    from recovery.plan import RecoveryPlan


def tables(plan: RecoveryPlan) -> list[Group]:
    """Return the tables of a plan for WAL and journal."""
    from deploy.console.table import table

    made = [
        table(
            f"Stream {plan.stream}, timeline {plan.timeline}: {plan.segments} segments",
            ("decision", "places"),
            sorted(plan.counts.items()),
        ),
        table(
            "Places that differ from the journal",
            ("segment", "offset", "until", "decision", "block", "ranges", "why"),
            [
                (p.path, p.offset, p.until, p.decision, p.block_id or "-", "\n".join(p.ranges) or "-", p.reason)
                for p in plan.places
            ],
        ),
    ]
    if plan.recoveries:
        made.append(
            table(
                "Blocks written again" if plan.applied else "Blocks that --apply writes again",
                ("block", "ranges", "batch", "from"),
                [
                    (
                        r.block_id,
                        "\n".join(r.ranges),
                        r.batch_id or "-",
                        r.source if r.exact else f"{r.source}, encoded again",
                    )
                    for r in plan.recoveries
                ],
            )
        )
    if plan.losses:
        made.append(
            table(
                "Lost",
                ("block", "ranges", "batch", "why"),
                [(x.block_id, "\n".join(x.ranges), x.batch_id or "-", "\n".join(x.reasons)) for x in plan.losses],
            )
        )
    if plan.damaged:
        made.append(
            table(
                "Damaged segments",
                ("segment", "set aside as" if plan.applied else "--apply sets it aside as", "kept because"),
                [(d.path, d.aside or "-", d.kept or "-") for d in plan.damaged],
            )
        )
    if plan.kafka.unreachable:
        made.append(table("Kafka", ("what", "why"), [("not asked", plan.kafka.unreachable)]))
    else:
        made.append(
            table(
                "Kafka",
                ("partition", "incarnation", "position", "committed", "first held", "end"),
                [
                    (f"{p.topic}/{p.partition}", p.incarnation, p.position, p.committed, p.low, p.high)
                    for p in plan.kafka.partitions
                ],
            )
        )
    copies = plan.copies
    made.append(
        table(
            "Copies and history",
            ("what", "found"),
            [
                (
                    copies.directory,
                    copies.unreadable
                    or f"{copies.found} copies, {copies.absent} missing, {copies.stray} unknown to the journal",
                ),
                *(("damaged copy, set aside there", name) for name in copies.damaged),
                ("agents that answered", ", ".join(copies.agents) or "none"),
                *(("agent that did not answer", cause) for cause in copies.silent),
                ("completed batches in the history", plan.history.batches),
            ],
        )
    )
    return made


def tables_of_copies(plan: DamagedCopiesPlan) -> list[Group]:
    """Return the table of a plan for damaged copies, of a stream without a WAL."""
    from deploy.console.table import table

    return [
        table(
            f"Damaged copies in {plan.directory}",
            ("file", "block", "ranges", "finding"),
            [(Path(c.path).name, c.block_id, "\n".join(c.ranges) or "-", c.finding) for c in plan.damaged],
        )
    ]
