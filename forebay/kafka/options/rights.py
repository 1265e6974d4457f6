"""The rights that Kafka's authorizer must allow, for each use of Forebay, and the commands that allow them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["topic", "group", "transactional-id", "cluster"]
#: stands for the principal where it is unknown: the broker derives it from the login or from the certificate
ANY_PRINCIPAL = "User:NAME"


#: stands for the name of a topic that is unknown
ANY_NAME = "NAME"


class Right(NamedTuple):
    """Operations on a resource, with the names of Kafka's tools.

    ``prefixed``: on all resources whose names begin with ``name``.
    """

    kind: Kind
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


def grant(right: Right, principal: str = ANY_PRINCIPAL) -> str:
    """Return the command of Kafka's own tool that allows ``right``."""
    parts = ["kafka-acls.sh --add --allow-principal", principal]
    parts += [f"--operation {operation}" for operation in right.operations]
    parts.append("--cluster" if right.kind == "cluster" else f"--{right.kind} {right.name}")
    if right.prefixed:
        parts.append("--resource-pattern-type prefixed")
    return " ".join(parts)


def grants(rights: Iterable[Right], principal: str = ANY_PRINCIPAL) -> Iterator[str]:
    """Return the commands for ``rights``."""
    return (grant(right, principal) for right in rights)


# Read includes Describe, and so does Write.


def receiver_rights(topics: Iterable[str], group: str) -> list[Right]:
    """Return the rights of receivers: they are members of ``group``, and read ``topics``."""
    return [*(Right("topic", topic, ("Read",)) for topic in topics), Right("group", group, ("Read",))]


def driver_rights(topics: Iterable[str], groups: Iterable[str]) -> list[Right]:
    """Return the rights of the driver and of its tasks: they read ``topics``, and commit for ``groups`` without being members."""
    return [
        *(Right("topic", topic, ("Read",)) for topic in topics),
        *(Right("group", group, ("Read",)) for group in groups),
    ]


def reader_rights(topics: Iterable[str]) -> list[Right]:
    """Return the rights of a query, batch RDD or direct stream that reads ``topics`` and commits nothing."""
    return [Right("topic", topic, ("Read",)) for topic in topics]


def writer_rights(topic: str) -> list[Right]:
    """Return the rights to write to ``topic`` without transactions."""
    return [Right("topic", topic, ("Write",))]


def transaction_rights(topic: str, transactional_id: str) -> list[Right]:
    """Return the rights to write to ``topic`` in transactions with markers. ``transactional_id``: the first part of the ids.

    The marker is a committed offset of ``topic``, in a group whose name begins with the id.
    """
    return [
        Right("topic", topic, ("Read", "Write")),
        Right("transactional-id", transactional_id, ("Write",), prefixed=True),
        Right("group", transactional_id, ("Read",), prefixed=True),
    ]
