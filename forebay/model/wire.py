"""The names that fields have in JSON, in the journal and in headers, where those differ from the fields' names in the code."""

from __future__ import annotations

from typing import Final

#: for ``msgspec.Struct``'s ``rename``: field name → name on the wire and on disk
WIRE_NAMES: Final = {
    "from_offset": "from",  # a keyword of Python
    "until_offset": "until",
    # names of the first release, which its journals, its WALs and its services know
    "incarnation": "life",
    "incarnations": "lives",
    "new_incarnation": "new_life",
    "timeline": "lineage",
    "fault": "trouble",
    "replica_host": "second_host",
}
