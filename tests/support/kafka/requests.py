"""Requests to brokers that librdkafka does not have: who leads the quorum of controllers, and quotas of clients."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

_DESCRIBE_QUORUM, _ALTER_CLIENT_QUOTAS = 55, 49
_METADATA_TOPIC = b"__cluster_metadata"
_SECONDS = 10.0


def active_controller(address: str) -> int:
    """Return the node that leads the quorum of controllers, as the broker at ``address`` learns it; -1 while none leads.

    Raises OSError if the broker does not answer.
    """
    partition = b"\x02" + struct.pack(">i", 0) + b"\0"
    topic = b"\x02" + bytes([len(_METADATA_TOPIC) + 1]) + _METADATA_TOPIC + partition + b"\0"
    answer = _asked(address, _DESCRIBE_QUORUM, b"\0", topic + b"\0")[1:]  # without the header's tags
    (error,) = struct.unpack_from(">h", answer)
    if error:
        return -1
    at = 2 + 1 + 1 + len(_METADATA_TOPIC) + 1
    _, partition_error, leader = struct.unpack_from(">ihi", answer, at)
    return -1 if partition_error else int(leader)


def set_client_quotas(address: str, quotas: Mapping[str, float | None]) -> None:
    """Set quotas of all clients without their own, such as ``consumer_byte_rate``; None removes one."""
    entity = struct.pack(">i", 1) + _string("client-id") + struct.pack(">h", -1)
    operations = struct.pack(">i", len(quotas)) + b"".join(
        _string(key) + struct.pack(">d?", value or 0.0, value is None) for key, value in quotas.items()
    )
    answer = _asked(address, _ALTER_CLIENT_QUOTAS, b"", struct.pack(">i", 1) + entity + operations + b"\0")
    _, entries, error = struct.unpack_from(">iih", answer)
    assert (entries, error) == (1, 0), f"the broker refused the quotas with error {error}"


def _asked(address: str, key: int, tags: bytes, body: bytes) -> bytes:
    """Return the answer to a request in version 0 without its correlation id. ``tags``: of the header."""
    host, _, port = address.partition(":")
    request = struct.pack(">hhi", key, 0, 1) + _string("tests") + tags + body
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as reading:
            head = reading.read(4)
            if len(head) < 4:
                raise ConnectionError(f"{address} ended the connection")
            return reading.read(struct.unpack(">i", head)[0])[4:]


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
