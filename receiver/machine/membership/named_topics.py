"""The topics that the driver names for ``kafka.pattern``, and the warning if it names none. Pure."""

from __future__ import annotations

_NOT_NAMED = (
    "the driver does not name the topics of kafka.pattern: it is of an older release, or its configuration has no "
    "kafka.pattern; upgrade the driver"
)


class NamedTopics:
    """The topics that the driver named last.

    ``by_pattern``: the receiver's configuration has ``kafka.pattern``, so only the driver can name topics.
    """

    def __init__(self, by_pattern: bool) -> None:
        self._by_pattern = by_pattern
        self._left_out = False  # by the last answer
        self.topics: tuple[str, ...] | None = None  # as the driver named them last; None: never

    @property
    def detail(self) -> str:
        """Why the receiver subscribes to no topic; "" if it does."""
        if self.topics == ():
            return "no topic matches kafka.pattern"
        return _NOT_NAMED if self._left_out and self.topics is None else ""

    def hear(self, named: tuple[str, ...] | None) -> str:
        """Note whether a driver's answer names topics. Return a warning for the first answer that does not, else ""."""
        known, self._left_out = self._left_out, self._by_pattern and named is None
        if known or not self._left_out:
            return ""
        consequence = "no topic is subscribed to" if self.topics is None else "new and deleted topics are not noticed"
        return f"{_NOT_NAMED}: until then {consequence}"
