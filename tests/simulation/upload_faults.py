"""What may happen to a request to the WAL's store of objects."""

from __future__ import annotations

#: requests that create an object
CREATING = frozenset({"put_object", "complete_multipart_upload"})
#: the store carries the request out, and its answer arrives
ANSWERED = "upload"
#: not carried out: no answer in time, or the connection ends
LOST, BROKEN = "lost", "broken"
#: carried out: no answer in time, or the connection ends
UNANSWERED, CUT = "unanswered", "cut"
#: no answer in time, and carried out later or never; carried out twice, with the second answer
LATE, REPEATED = "late", "repeated"
#: what may happen to any request
FAULTS = (LOST, BROKEN, UNANSWERED, CUT, REPEATED)
