"""Every key of ``forebay.toml`` with its type, default and description, read from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec.inspect import Metadata, StructType, Type

from forebay.settings.schema import Section, Settings

#: default of a key that every file must have
REQUIRED: Any = msgspec.NODEFAULT
#: field of the open sections that holds all keys without a field of their own
OPTIONS = "options"


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``section`` is "" above the first section; ``hint`` is the annotation, ``type`` its form in msgspec.inspect."""

    section: str
    name: str
    hint: Any
    type: Type
    default: Any
    description: str
    example: Any

    @property
    def path(self) -> str:
        """``section.name``; above the first section, the name alone."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def is_secret(self) -> bool:
        """Whether the value can be a secret, and so is shown nowhere."""
        return self._has("secret")

    @property
    def names_secret(self) -> bool:
        """Whether the value names a secret's file. A value that does not fit may be the secret, so no error shows it."""
        return self._has("names_secret")

    def _has(self, mark: str) -> bool:
        extras = (getattr(part, "extra", None) for part in _parts(self.type))
        return any(isinstance(extra, dict) and extra.get(mark, False) for extra in extras)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values in the order of the key's ``Literal``, which msgspec.inspect would sort; () for another type."""
        literal = self.hint.__origin__
        return get_args(literal) if get_origin(literal) is Literal else ()


def _parts(kind: Any) -> Iterator[Any]:
    """Yield ``kind`` of msgspec.inspect and the types in it."""
    yield kind
    for inner in (getattr(kind, "type", None), getattr(kind, "item_type", None), *getattr(kind, "types", ())):
        if inner is not None:
            yield from _parts(inner)


@cache
def sections() -> dict[str, type[Section]]:
    """Return the sections by name, in the order of the schema."""
    return {
        name: hint
        for name, hint in get_type_hints(Settings).items()
        if isinstance(hint, type) and issubclass(hint, Section)
    }


@cache
def required_sections() -> frozenset[str]:
    """Return the sections that every file must have."""
    return frozenset(field.name for field in msgspec.structs.fields(Settings) if field.required) & sections().keys()


@cache
def keys_by_section() -> dict[str, dict[str, Key]]:
    """Return section → name → key, in the order of the schema; the keys above the first section are in section ""."""
    found: dict[str, dict[str, Key]] = {"": {}, **{name: {} for name in sections()}}
    whole = msgspec.inspect.type_info(Settings)
    assert isinstance(whole, StructType)
    hints = get_type_hints(Settings, include_extras=True)
    for field in whole.fields:
        if isinstance(field.type, StructType):
            own_hints = get_type_hints(field.type.cls, include_extras=True)
            for own in field.type.fields:
                if own.name != OPTIONS:
                    found[field.name][own.name] = _key(field.name, own, own_hints[own.name])
        else:
            found[""][field.name] = _key("", field, hints[field.name])
    return found


def is_open(section: str) -> bool:
    """Return whether keys without a field pass through ``section`` unchanged, to librdkafka or to Spark."""
    return OPTIONS in sections()[section].__struct_fields__


def _key(section: str, field: msgspec.inspect.Field, hint: Any) -> Key:
    about = (field.type.extra_json_schema or {}) if isinstance(field.type, Metadata) else {}
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    (example,) = about.get("examples", (None,))
    return Key(section, field.name, hint, field.type, default, about.get("description", ""), example)
