"""What happens in a stream, for listeners of the user's own and for a web hook (docs/OUTPUTS.md names the events)."""

from driver.listeners.dispatch import (
    BatchCompleted,
    BatchFailed,
    BatchStarted,
    BatchSubmitted,
    BlockAdded,
    GapFound,
    Happened,
    Listener,
    RateChanged,
    ReceiverFailed,
    ReceiverStarted,
    ReceiverStopped,
)

__all__ = [
    "BatchCompleted",
    "BatchFailed",
    "BatchStarted",
    "BatchSubmitted",
    "BlockAdded",
    "GapFound",
    "Happened",
    "Listener",
    "RateChanged",
    "ReceiverFailed",
    "ReceiverStarted",
    "ReceiverStopped",
]
