"""The one error tree of Forebay.

::

    ForebayError
    ├── UsageError                 what a person asked for can't be: says what, where, what is allowed      exit 2
    │   ├── SettingsError          … in the configuration: names the file and the key
    │   └── UnknownTopicError      … of Kafka: no such topic or partition, now
    ├── UnreachableError           a broker, driver, agent or store did not answer in time                 exit 3
    │   ├── TurnedAwayError        … since it takes nothing of that kind in just now: ask again later
    │   └── NotTakenError          … and nobody decided anything: nobody listens there, or a standby does
    │       ├── NoListenerError … and nothing accepts connections at that address
    │       └── AccessError        … or who listens knows no token of ours that may do that                exit 2
    ├── AlreadyRunningError        another process does this already: names it; nothing was started            exit 5
    ├── FencedError                this process's epoch or token is outdated; nothing it does may count    exit 4
    ├── RefusedError               a service understood the request and said no (its words are kept)
    ├── StoreError                 a store could not do what was asked
    │   ├── OutOfSpaceError        … for lack of space: wait and try again, nothing failed
    │   └── DeniedError            … since it does not know these credentials, or gives them no right to it
    ├── CorruptionError            bytes are not what was written: carries path, offset and reason
    ├── NewerVersionError          bytes were written by a newer release: not corrupt, not readable here
    ├── RangeNotHeldError          Kafka does not hold the very records of a range any more, or can't prove that it does
    │   ├── OutOfRangeError        … it holds none at the range's first offset any more
    │   ├── ShortReadError         … its log ends before the range does
    │   ├── OvershotError          … the next record after one inside lies at the range's end or beyond it
    │   └── OffsetGapError              … offsets inside hold no record: compacted, or of a transaction
    ├── RecordError                a record of a batch RDD or direct stream could not be deserialised: names its offset
    ├── MissingKeyError            bytes are encrypted with a key that is not at hand: nothing is wrong with them
    ├── SourceError                a receiver's source of the user's own (docs/SOURCES.md) failed, or broke its promises
    ├── UnreadableBlockError       no tier could answer for a range of a batch (INV-5: never an empty partition)
    │   └── LostBlockError         … and each one said that it has it no more, or damaged: not that it was out of reach
    ├── EngineLostError            what runs the jobs has ended (Spark's JVM, its context): no attempt can succeed in this process
    └── JobError                   the user's job failed ``job_max_failures`` times; its batch stays intact

Raise or handle; nothing logs an error and goes on as if it had not happened.
"""

from __future__ import annotations


class ForebayError(Exception):
    """Base of every error that Forebay raises on purpose. ``exit_code`` is what the command line answers with."""

    exit_code = 1


class UsageError(ForebayError):
    exit_code = 2


class SettingsError(UsageError):
    """A value in the configuration that can't be. The message names file, key, value and what is allowed. ``key``: which one
    ("section.key"), "" if it is none of one key."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class UnknownTopicError(UsageError):
    """Kafka knows no such topic or partition at this moment: it may be too new for a broker, or just deleted."""


class UnreachableError(ForebayError):
    exit_code = 3


class TurnedAwayError(UnreachableError):
    """Nothing was decided, and whoever said so is at work: the same request may be taken later."""


class NotTakenError(UnreachableError):
    """The request reached nobody who could decide it: it may be sent elsewhere at once. ``leader``: where a standby says that
    the driver at work is; "" if nobody listens, or it knows of none."""

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class NoListenerError(NotTakenError):
    """``reason``: as the connection's library reported it."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class AccessError(NotTakenError):
    """A service wants another token than it was sent. ``code``: unauthenticated (none that it knows) or forbidden (of another
    role, or another's name). Processes wait and read their token again, so a service and its clients may get new ones in any
    order."""

    exit_code = 2

    def __init__(self, message: str, code: str = "unauthenticated") -> None:
        super().__init__(message)
        self.code = code


class AlreadyRunningError(ForebayError):
    """Another process does already what this one was to do. The message names it; this one has changed nothing."""

    exit_code = 5


class FencedError(ForebayError):
    """Another process has a newer epoch. No supervisor restarts a process that ended with this (INV-4)."""

    exit_code = 4


class RefusedError(ForebayError):
    """A service answered no. ``code`` is the machine-readable reason of ``messages.Refusal``."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class StoreError(ForebayError):
    pass


class OutOfSpaceError(StoreError):
    pass


class DeniedError(StoreError):
    """The store answered that access is denied. ``reason``: in its own short words, such as ``InvalidAccessKeyId``."""

    def __init__(self, words: str, reason: str) -> None:
        super().__init__(words)
        self.reason = reason

    def __reduce__(self) -> tuple[type[DeniedError], tuple[str, str]]:
        return DeniedError, (str(self), self.reason)


class CorruptionError(ForebayError):
    """Bytes at ``path`` from ``offset`` on are damaged, for ``reason``."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class NewerVersionError(ForebayError):
    """Bytes at ``path`` from ``offset`` on carry format ``version``, or within a known one ``feature`` (in words), which
    this release does not know; it reads up to format ``newest``."""

    def __init__(self, path: str, offset: int, version: int, newest: int, feature: str | None = None) -> None:
        super().__init__(
            f"{path} at byte {offset} was written with {feature or f'format {version}'}; "
            f"this release reads up to format {newest}: use the release that wrote it, or a newer one"
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


class EngineLostError(ForebayError):
    pass


class JobError(ForebayError):
    pass
