"""How values are encoded in JSON, in the journal and in headers: names that differ from the fields', and errors of decoding."""

from __future__ import annotations

from typing import Final

import msgspec

#: what msgspec raises for bytes that it can't decode: of another type, no UTF-8, nested too deeply
UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

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
