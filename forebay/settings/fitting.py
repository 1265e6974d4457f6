"""Conversion of one value to the type of its key, and the words for a value that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
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
from forebay.settings.reference import Key
from forebay.settings.similar import did_you_mean
from forebay.settings.toml_text import toml_text


class UnfitError(Exception):
    """A value that does not fit its key. ``value`` is the part to show. ``secret``: an error must not show it."""

    def __init__(self, value: object, words: str, secret: bool = False) -> None:
        super().__init__(words)
        self.value = value
        self.words = words
        self.secret = secret


def fitted(key: Key, value: Any) -> Any:
    """Return ``value``, as TOML gives it, as the type of ``key``. Raises UnfitError with what is allowed."""
    try:
        converted = msgspec.convert(value, key.hint, dec_hook=_parse)
    except msgspec.ValidationError as error:
        words = str(error.__cause__) if isinstance(error.__cause__, ValueError) else _allowed(key, key.type, value)
        raise UnfitError(value, words) from None
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
            raise UnfitError(written, str(error), extra["secret"]) from None


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
