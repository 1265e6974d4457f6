"""Events of a stream, for listeners in user code and for a web hook. User code imports from here."""

from driver.listeners.events import (
    BatchCompleted,
    BatchFailed,
    BatchSkipped,
    BatchStarted,
    BatchSubmitted,
    BlockAdded,
    GapFound,
    Happened,
    Listener,
    PauseChanged,
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
    "BatchSkipped",
    "BatchStarted",
    "BatchSubmitted",
    "BlockAdded",
    "GapFound",
    "Happened",
    "Listener",
    "PauseChanged",
    "RateChanged",
    "ReceiverFailed",
    "ReceiverStarted",
    "ReceiverStopped",
]
