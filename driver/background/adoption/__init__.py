"""Adoption: takes in records that Kafka has lost from orphans in the WAL (rule 8).

An orphan is a block that became durable and was not reported in time, because its receiver ended before the report or lost its
claim. Adoption writes the missing offsets of one of its ranges into a new block under a new token. It acts as the receiver
``forebay-adoption``, which is this driver itself, and sends the tracker's ordinary requests. If the driver is killed during an
adoption, it leaves at most one more orphan, which the next search finds.
"""

from __future__ import annotations

from driver.background.adoption.adopter import BLOCKED_SECONDS, ROUND_SECONDS, Adopter, advanced
from driver.background.adoption.orphans import Orphan, covering, eligible, next_from, until
from driver.background.adoption.search import OrphanSearch
from driver.background.adoption.thread import AdoptionThread

__all__ = [
    "BLOCKED_SECONDS",
    "ROUND_SECONDS",
    "Adopter",
    "AdoptionThread",
    "Orphan",
    "OrphanSearch",
    "advanced",
    "covering",
    "eligible",
    "next_from",
    "until",
]
