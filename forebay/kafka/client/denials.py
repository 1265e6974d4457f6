"""Operations that Kafka's authorizer denies: the error names the right that is missing, and the command that grants it."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError

from forebay.kafka.options.rights import Kind, Right, grants
from forebay.model.errors import MissingRightError

_KINDS: dict[int, Kind] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
}
#: maximum number of commands in an error
_COMMANDS_MAX = 3


def is_denied(error: KafkaError | None) -> bool:
    """Return whether the authorizer denied the request. The principal has logged in."""
    return error is not None and error.code() in _KINDS


def denied_kind(error: KafkaError) -> Kind | None:
    """Return the kind of resource that the authorizer protects; None for any other error."""
    return _KINDS.get(error.code())


def denial_in(text: str) -> KafkaError | None:
    """Return the denial that ``text`` of librdkafka names; None if it names none."""
    code = next((code for code in _KINDS if KafkaError(code).str() in text), None)
    return None if code is None else KafkaError(code, text)


def next_step(error: KafkaError, needed: Iterable[Right]) -> str:
    """Return the commands that allow what ``error`` denies; "" for any other error.

    ``needed``: the rights of the request. A right on another kind of resource may be the cause: a broker denies a producer
    the cluster if the principal may write to no topic.
    """
    kind = denied_kind(error)
    if kind is None:
        return ""
    rights = list(needed)
    own = [right for right in rights if right.kind == kind] or rights
    more = f" (and {len(own) - _COMMANDS_MAX} more)" if len(own) > _COMMANDS_MAX else ""
    return f"allow it: {'; '.join(grants(own[:_COMMANDS_MAX]))}{more}"


def missing_right(message: str, error: KafkaError, needed: Iterable[Right]) -> MissingRightError:
    """Return an error of ``message``, which ends with the text of ``error``, and the next step.

    ``error``: as :func:`is_denied`.
    """
    return MissingRightError(f"{message.rstrip('.')}; {next_step(error, needed)}")
