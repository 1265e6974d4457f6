"""The conditions under which the driver accepts requests of receivers and agents."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from driver.tracker.requests import MessageRequest
from forebay.messages import AgentHeartbeatRequest, ClaimRequest, LookupRequest, RegisterRequest
from forebay.model.errors import UnreachableError

NO_COPY = "no snapshot copy of the journal is stored beside the WAL yet"
_NOT_COMPARED = "Kafka's committed offsets have not been compared with the journal yet"
_STOPPING = "the driver is stopping: it registers no receivers"


class Admission:
    """Decides whether a request may go to the tracker now.

    ``commits_checked``: Kafka's commits were compared with the journal. ``copied``: a snapshot copy with the stream's partitions
    is beside the WAL. ``is_stopping``: whether the driver drains or stops.
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self.commits_checked = False
        self.copied = False
        self._is_stopping = is_stopping

    def admit(self, request: MessageRequest) -> MessageRequest:
        """Return the request to pass to the tracker. Raises UnreachableError if the sender must wait."""
        if isinstance(request, RegisterRequest) and self._is_stopping():
            raise UnreachableError(_STOPPING)
        if not self.commits_checked and isinstance(request, AgentHeartbeatRequest):
            # an empty journal knows no block: until Kafka's commits say that it was not lost, no copy is a stray one
            request = msgspec.structs.replace(request, old_blocks=())
        if not self.commits_checked and isinstance(request, LookupRequest | ClaimRequest):
            # a receiver that claims commits the position first: that would overwrite a commit that proves a lost journal (rule 5)
            raise UnreachableError(_NOT_COMPARED)
        if not self.copied and isinstance(request, LookupRequest | ClaimRequest):
            # what is accepted before there is a copy could not be found again if the journal were lost
            raise UnreachableError(NO_COPY)
        return request
