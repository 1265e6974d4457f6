"""Events of a stream, for listeners in user code and for a web hook. User code imports from here."""

from driver.listeners.events import (
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
from forebay.messages import BatchRange

__all__ = [
    "BatchCompleted",
    "BatchFailed",
    "BatchRange",
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
