"""The topics that the driver names for ``kafka.pattern``: what was said last, and that a driver says nothing. Pure."""

from __future__ import annotations

_NOT_NAMED = (
    "the driver is of an older release, which does not name the topics of kafka.pattern (or its configuration has no "
    "kafka.pattern); upgrade the driver"
)


class NamedTopics:
    """``by_pattern``: whether the receiver's configuration has ``kafka.pattern``, so that only the driver can name topics."""

    def __init__(self, by_pattern: bool) -> None:
        self._by_pattern = by_pattern
        self._left_out = False  # by the last answer
        self.topics: tuple[str, ...] | None = None  # as the driver named them last; None: never

    @property
    def detail(self) -> str:
        """Why the receiver subscribes to no topic, in words; "" if it does."""
        if self.topics == ():
            return "no topic matches kafka.pattern"
        return _NOT_NAMED if self._left_out and self.topics is None else ""

    def hear(self, named: tuple[str, ...] | None) -> str:
        """Take note of whether a driver's answer names topics. Return a warning for the first one that does not, else ""."""
        known, self._left_out = self._left_out, self._by_pattern and named is None
        if known or not self._left_out:
            return ""
        consequence = (
            "no topic is subscribed to" if self.topics is None else "topics that are new or deleted are not noticed"
        )
        return f"{_NOT_NAMED}: until then {consequence}"
