"""Copies of blocks as the tiers keep them, verified but not decoded: for code that writes a block again."""

from __future__ import annotations

from forebay.model.errors import ForebayError, UnreachableError
from wal.blocks import StoredBlock
from wal.reading.reference import BlockReference, ReadPlan, Tier
from wal.reading.tiers import check_same, fetch


def stored_copy(reference: BlockReference, plan: ReadPlan, tier: Tier) -> StoredBlock | None:
    """Return the block as ``tier`` keeps it, fully verified, its payload unchanged; None if the tier does not apply.

    Raises FileNotFoundError, CorruptionError, NewerVersionError, StoreError, OSError;
    for agents UnreachableError, which gives each asked host's reason.
    """
    if tier == "agent":
        return _copy_of_any_agent(reference, plan)
    return _checked_copy(reference, plan, tier, "")


def _copy_of_any_agent(reference: BlockReference, plan: ReadPlan) -> StoredBlock | None:
    """Return the first verified copy of the hosts' agents; None if no host keeps one."""
    reasons = []
    for host in reference.hosts:
        try:
            stored = _checked_copy(reference, plan, "agent", host)
            if stored is not None:
                return stored
        except FileNotFoundError:
            reasons.append(f"{host} has none")
        except (ForebayError, OSError) as error:  # another host may have it whole
            reasons.append(f"{host}: {error}")
    if reasons:
        raise UnreachableError("; ".join(reasons))
    return None


def _checked_copy(reference: BlockReference, plan: ReadPlan, tier: Tier, host: str) -> StoredBlock | None:
    stored = fetch(reference, plan, tier, host)
    if stored is not None:
        check_same(reference, stored, f"{tier} copy of block {reference.id}")
    return stored
