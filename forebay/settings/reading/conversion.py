"""Conversion of a file's values to :class:`Settings`, key by key, so that one mistake hides no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    Type,
    UnionType,
    VarTupleType,
)

from forebay.model.units import Duration, Size, parse_duration, parse_size
from forebay.settings import data_folder, reference
from forebay.settings.reading import open_sections
from forebay.settings.reading.mistakes import Mistakes, shown
from forebay.settings.reading.similar import did_you_mean
from forebay.settings.redaction import HIDDEN
from forebay.settings.reference import OPTIONS, REQUIRED, Key
from forebay.settings.schema import LoadedSettings
from forebay.settings.toml_text import toml_text

#: stands for a required key that is missing or wrong; no rule reads it
_PLACEHOLDER = ""
_MISSING = "the section [{}] is missing"


class UnfitError(Exception):
    """A value that does not fit its key. ``value`` is the part to show, if the key's type allows it."""

    def __init__(self, value: object, message: str) -> None:
        super().__init__(message)
        self.value = value
        self.message = message


def converted(raw: Mapping[str, Any], mistakes: Mistakes) -> LoadedSettings:
    """Return ``raw``, as TOML gives it, as settings, and add to ``mistakes`` the keys and sections that do not fit.

    A key that does not fit has its default in the result, a required one an empty text.
    """
    _refuse_unknown("", raw, [*reference.keys_by_section()[""], *reference.sections()], mistakes)
    raw = data_folder.filled(raw, mistakes.variables)
    storage = raw.get("storage")
    if isinstance(storage, Mapping):
        raw = {**raw, "storage": open_sections.storage(storage, mistakes)}
    values = _values("", raw, mistakes)
    for name in reference.sections():
        table = raw.get(name, {})
        if name not in raw and name in reference.required_sections():
            mistakes.add(name, _MISSING.format(name) + data_folder.hint(name))
            table = None
        elif not isinstance(table, Mapping):
            mistakes.add_value(name, table, f"is not a section: write [{name}] and its keys below it")
            table = None
        values[name] = _section(name, table, mistakes)
    settings = LoadedSettings(**values, origins={key: mistakes.origin(key) for key in _written(raw)})
    # a rule about receiver.source itself, as in rules
    if "kafka" not in raw and not settings.custom_source and not mistakes.concern("receiver.source"):
        mistakes.add("kafka", _MISSING.format("kafka"))
    return settings


def _written(raw: Mapping[str, Any]) -> Iterator[str]:
    """Yield the path of every key that ``raw`` sets."""
    for name, value in raw.items():
        if not isinstance(value, Mapping) or name not in {*reference.sections(), "storage"}:
            yield name
            continue
        keep = reference.keys_by_section().get(name, {})
        yield from (f"{name}.{key}" for key in open_sections.flat(value, keep))


def _section(name: str, table: Mapping[str, Any] | None, mistakes: Mistakes) -> Any:
    """Return the section that ``table`` gives. None: one that is missing or wrong as a whole, with no further mistakes."""
    section = reference.sections()[name]
    if table is None:
        return section(
            **{key.name: _PLACEHOLDER for key in reference.keys_by_section()[name].values() if key.default is REQUIRED}
        )
    options = {}
    if reference.is_open(name):
        table, options[OPTIONS] = open_sections.split(name, table, mistakes)
    else:
        _refuse_unknown(name, table, [*reference.keys_by_section()[name]], mistakes)
    return section(**_values(name, table, mistakes), **options)


def _refuse_unknown(section: str, table: Mapping[str, Any], known: list[str], mistakes: Mistakes) -> None:
    for name in table:
        if name not in known:
            path = f"{section}.{name}" if section else name
            mistakes.add(path, f"unknown key {path}; {did_you_mean(name, known)}allowed are {', '.join(sorted(known))}")


def _values(section: str, table: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """Return the values of the section's keys that are in ``table``."""
    values = {}
    for key in reference.keys_by_section()[section].values():
        if key.name in table:
            try:
                values[key.name] = fitted(key, _toml_value(key, table[key.name]))
                continue
            except UnfitError as error:
                mistakes.add(key.path, _sentence(key, error))
        elif key.default is REQUIRED:
            hint = data_folder.hint(key.path)
            mistakes.add(key.path, f"the key {key.path} is missing ({key.description}){hint}")
        if key.default is REQUIRED:
            values[key.name] = _PLACEHOLDER
    return values


def _sentence(key: Key, error: UnfitError) -> str:
    if key.path == "storage":
        return f"storage = {shown(error.value)}: is not a section: write [storage.SCHEME] and its keys below it"
    value = HIDDEN if key.is_secret or key.names_secret else shown(error.value)
    return f"{key.path} = {value}: {error.message} ({key.description})"


def _toml_value(key: Key, value: Any) -> Any:
    """Return ``value``; as kafka.starting_offsets, with a ``timestamp`` in milliseconds if TOML gives a date and time."""
    if key.path != "kafka.starting_offsets" or not isinstance(value, Mapping):
        return value
    if not isinstance(moment := value.get("timestamp"), datetime):
        return value
    if moment.tzinfo is None:
        raise UnfitError(value, "write the timestamp with its time zone")
    return {**value, "timestamp": int(moment.timestamp() * 1000)}


# ---- one value ------------------------------------------------------------------------------------------------------


def fitted(key: Key, value: Any) -> Any:
    """Return ``value``, as TOML gives it, as the type of ``key``. Raises UnfitError with what is allowed."""
    try:
        converted = msgspec.convert(value, key.hint, dec_hook=_parse)
    except msgspec.ValidationError as error:
        message = str(error.__cause__) if isinstance(error.__cause__, ValueError) else _allowed(key, key.type, value)
        raise UnfitError(value, message) from None
    _check(key.type, converted, value)
    return converted


def _parse(wanted: type, value: Any) -> Any:
    if wanted is Duration:
        return parse_duration(value)
    if wanted is Size:
        return parse_size(value)
    raise TypeError(f"no setting has type {wanted}")


def _check(kind: Type, value: Any, written: object) -> None:
    """Raise UnfitError if ``value``, in the file ``written``, breaks a constraint that msgspec does not know."""
    match kind:
        case Metadata(type=inner, extra=extra):
            _check(inner, value, written)
            if value is not None and extra:
                _check_constraints(extra, value, written)
        case UnionType(types=members):
            _check(_member(members, value), value, written)
        case VarTupleType(item_type=inner):
            for item in value:
                _check(inner, item, item)


def _check_constraints(extra: dict[str, Any], value: Any, written: object) -> None:
    if "positive" in extra and value <= 0:
        raise UnfitError(written, "must be longer than 0ms")
    if "least" in extra and value < extra["least"]:
        raise UnfitError(written, f"must be at least {toml_text(extra['least'])}")
    if "check" in extra:
        try:
            extra["check"](value)
        except ValueError as error:
            raise UnfitError(written, str(error)) from None


def _is_below(value: float, least: float | None) -> bool:
    return least is not None and not isinstance(value, bool) and value < least


def _member(members: tuple[Type, ...], value: Any) -> Type:
    """Return the member of a union that has the form of ``value``: None, a list, a table, or else the first other member."""
    for member in members:
        match _plain(member), value:
            case (NoneType(), None) | (VarTupleType(), list() | tuple()) | (DictType(), Mapping()):
                return member
    return next(member for member in members if not isinstance(member, NoneType))


def _plain(kind: Type) -> Type:
    return _plain(kind.type) if isinstance(kind, Metadata) else kind


def _allowed(key: Key, kind: Type, value: Any) -> str:
    """Return what is allowed instead of ``value``, which msgspec does not take as ``kind``."""
    match kind:
        case Metadata(extra=dict(extra)) if "allowed" in extra:
            return str(extra["allowed"])
        case Metadata(type=inner):
            return _allowed(key, inner, value)
        case UnionType(types=members):
            return _allowed(key, _member(members, value), value)
        case LiteralType():
            meant = did_you_mean(str(value), map(str, key.choices))
            return f"{meant}allowed are {', '.join(map(toml_text, key.choices))}"
        case VarTupleType(item_type=inner) if isinstance(value, list):
            return _allowed(key, inner, value)
        case VarTupleType():
            return 'write a list, as in ["flights"]'
        case IntType(ge=least) | FloatType(ge=least) if isinstance(value, (int, float)) and _is_below(value, least):
            return f"must be at least {least}"
        case IntType():
            return "write a whole number"
        case FloatType():
            return "write a number, as in 0.2"
        case BoolType():
            return "write true or false"
        case StrType():
            return 'write a text, as in "text"'
        case DictType():
            return "write a table, as in { name = 1 }"
    raise TypeError(f"no setting has type {kind}")
