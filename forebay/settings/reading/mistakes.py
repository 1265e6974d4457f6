"""The mistakes of one configuration, each as a sentence."""

from __future__ import annotations

from forebay.model.errors import SettingsError
from forebay.settings.redaction import shown_value
from forebay.settings.toml_text import toml_text

#: maximum number of mistakes that are collected; a file with more is probably not a Forebay configuration
MISTAKES_MAX = 50
#: characters of a value that an error shows
_SHOWN_MAX = 80


class Mistakes:
    """Collects mistakes. Each sentence names the file or the environment variable, the key, its value, and what is allowed."""

    def __init__(self, source: str) -> None:
        self.found: list[SettingsError] = []
        self.variables: dict[str, str] = {}  #: key → the environment variable that set it
        self._source = source
        self._wrong: set[str] = set()

    def add(self, key: str, message: str) -> None:
        """Add the mistake ``message``. ``key`` is "section.name", or the name of a section."""
        self.add_at(self.origin(key), message, key)

    def add_value(self, key: str, value: object, message: str) -> None:
        """Add that ``key`` must not have ``value``; ``message`` says what is allowed."""
        self.add(key, f"{key} = {shown(value, key)}: {message}")

    def add_at(self, source: str, message: str, key: str = "") -> None:
        """Add a mistake in ``source``, a file or an environment variable."""
        self._wrong.add(key)
        if len(self.found) < MISTAKES_MAX:
            self.found.append(SettingsError(f"{source}: {message}", key))

    def origin(self, key: str) -> str:
        """Return the name of the file or of the environment variable that sets ``key``."""
        parts = key.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))  # a variable may set a whole table
        return next((self.variables[name] for name in names if name in self.variables), self._source)

    def concern(self, key: str) -> bool:
        """Return whether ``key`` or its section has a mistake."""
        return not self._wrong.isdisjoint({key, key.partition(".")[0]})


def shown(value: object, name: str = "") -> str:
    """Return ``value``, that of an option ``name``, as TOML writes it, without secrets and shortened."""
    text = toml_text(shown_value(name, value))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
