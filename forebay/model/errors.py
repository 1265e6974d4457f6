"""The class hierarchy of Forebay's errors.

::

    ForebayError
    ├── UsageError                 a request of the user is invalid: names the value and what is allowed   exit 2
    │   ├── SettingsError          … in the configuration: names the file and the key
    │   └── UnknownTopicError      … Kafka has no such topic or partition now
    ├── UnreachableError           a broker, driver, agent or store did not answer in time                 exit 3
    │   ├── TurnedAwayError        … because it accepts no such requests at this moment: retry later
    │   ├── MissingRightError      … because Kafka's authorizer denies it: names the command that grants the right exit 2
    │   └── NotTakenError          … and no driver decided the request: no process listens, or a standby does
    │       ├── NoListenerError    … and no process accepts connections at that address
    │       └── AccessError        … or the service accepts no token that this process has                 exit 2
    ├── AlreadyRunningError        another process does this already: names it; nothing was started        exit 5
    ├── FencedError                this process's epoch or token is outdated: nothing that it does counts  exit 4
    ├── RefusedError               a service refused the request; the message is the service's
    ├── StoreError                 a store or this host could not execute a request; a new attempt may succeed
    │   ├── OutOfSpaceError        … for lack of space: wait and retry, nothing failed
    │   └── DeniedError            … because the credentials are unknown to it, or lack the right
    ├── CorruptionError            bytes differ from what was written: has path, offset and reason
    ├── NewerVersionError          bytes were written by a newer release: not corrupt, but unreadable for this one
    ├── RangeNotHeldError          Kafka no longer holds the same records of a range, or can't prove that it does
    │   ├── OutOfRangeError        … it holds no record at the range's first offset any more
    │   ├── ShortReadError         … its log ends before the range
    │   ├── OvershotError          … the next record, after a gap in the offsets, is beyond the range
    │   └── OffsetGapError         … offsets in the range have no record: compacted, or of a transaction
    ├── RecordError                a record of a batch RDD or direct stream could not be deserialised: names its offset
    ├── MissingKeyError            bytes are encrypted with a key that this process does not have; they are intact
    ├── SourceError                a custom source (docs/SOURCES.md) failed, or broke its contract
    ├── UnreadableBlockError       no tier could return a range of a batch (INV-5: never an empty partition)
    │   └── LostBlockError         … and each tier has lost or damaged it; none is merely unreachable
    ├── EngineLostError            the engine of the jobs (Spark's JVM or context) has ended: no attempt in this process succeeds
    └── JobError                   the user's job failed ``job_max_failures`` times; its batch stays intact

Raise or handle. No code logs an error and continues as if it had not happened.
"""

from __future__ import annotations


class ForebayError(Exception):
    """Base of every error that Forebay raises on purpose. ``exit_code``: that of a process that ends with it."""

    exit_code = 1


class UsageError(ForebayError):
    exit_code = 2


class SettingsError(UsageError):
    """An invalid value in the configuration. The message names the file, the key, the value and what is allowed.

    ``key``: as "section.key"; "" if the error does not concern a single key.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class UnknownTopicError(UsageError):
    """Kafka has no such topic or partition at this moment: it may be too new for this broker, or was just deleted."""


class UnreachableError(ForebayError):
    exit_code = 3


class TurnedAwayError(UnreachableError):
    """The service is running but did not decide the request. It may accept the same request later."""


class MissingRightError(UnreachableError):
    """Kafka's authorizer denied a request. The message names the right that is missing, and the command that grants it.

    Rights may be granted at any time, so a process waits and tries again, as for a broker that does not answer.
    """

    exit_code = 2


class NotTakenError(UnreachableError):
    """The request reached no process that could decide it, so it may be sent elsewhere immediately.

    ``leader``: the address of the leading driver, as a standby reported it; "" if no process listens or the standby knows none.
    """

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class NoListenerError(NotTakenError):
    """No process listens at an address. ``reason``: the cause as the HTTP library reported it."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class AccessError(NotTakenError):
    """A service refused the token that it received.

    ``code``: "unauthenticated" (an unknown token or none) or "forbidden" (a token of another role or name). Processes wait and
    read their token again, so tokens may change at a service and its clients in any order.
    """

    exit_code = 2

    def __init__(self, message: str, code: str = "unauthenticated") -> None:
        super().__init__(message)
        self.code = code


class AlreadyRunningError(ForebayError):
    """Another process does already what this one should do. The message names it. This process has changed nothing."""

    exit_code = 5


class FencedError(ForebayError):
    """Another process has a newer epoch. No supervisor restarts a process that ends with this error (INV-4)."""

    exit_code = 4


class RefusedError(ForebayError):
    """A service refused a request. ``code``: the machine-readable reason of ``messages.Refusal``."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class RunAgainError(RefusedError):
    """A run of a batch ended without a completion, by no failure of its job. The batch runs again."""


class AfterReplayError(RunAgainError):
    """A batch was to change a keyed state during a replay. It runs again after the replay, since it has read what the replay
    replaces."""


class StoreError(ForebayError):
    pass


class OutOfSpaceError(StoreError):
    pass


class DeniedError(StoreError):
    """The store denied access. ``reason``: the store's own code, such as ``InvalidAccessKeyId``."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[DeniedError], tuple[str, str]]:
        return DeniedError, (str(self), self.reason)


class CorruptionError(ForebayError):
    """Bytes at ``path`` are damaged from ``offset`` on. ``reason``: how."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class NewerVersionError(ForebayError):
    """Bytes at ``path`` from ``offset`` on have a format that this release does not know.

    ``version``: their format. ``newest``: the newest format that this release reads. ``feature``: a description, if the format is
    known but a part of it is not.
    """

    def __init__(self, path: str, offset: int, *, version: int, newest: int, feature: str | None = None) -> None:
        super().__init__(
            f"{path} at byte {offset} was written with {feature or f'format {version}'}; "
            f"this release reads formats up to {newest}: use the release that wrote it, or a newer one"
        )
        self.path = path
        self.offset = offset
        self.version = version
        self.feature = feature


class RangeNotHeldError(ForebayError):
    pass


class OutOfRangeError(RangeNotHeldError):
    pass


class ShortReadError(RangeNotHeldError):
    pass


class OvershotError(RangeNotHeldError):
    pass


class OffsetGapError(RangeNotHeldError):
    pass


class RecordError(ForebayError):
    pass


class MissingKeyError(ForebayError):
    pass


class SourceError(ForebayError):
    pass


class UnreadableBlockError(ForebayError):
    pass


class LostBlockError(UnreadableBlockError):
    pass


class PartnerSkippedError(ForebayError):
    """An operator skipped the joint batch that a batch belongs to, so this batch is skipped too. ``cause``: who, and why."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class EngineLostError(ForebayError):
    pass


class JobError(ForebayError):
    pass
