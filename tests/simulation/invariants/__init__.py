"""What must hold after every step ("Invariants" in docs/ARCHITECTURE.md), for what a crash at this moment would leave.

The checks use bytes and sent answers, not the state of the code under test. The journal is read again from its synced
bytes whenever these have changed. Blocks are read by handle from the WAL, and their rows are compared with Kafka's.
"""

from tests.simulation.invariants.invariants import Invariants
from tests.simulation.invariants.violation import InvariantViolation

__all__ = ["InvariantViolation", "Invariants"]
