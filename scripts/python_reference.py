"""Renders classes, functions and values of user-facing packages as Markdown: signatures, fields and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, ForwardRef

import msgspec

_ROLE = re.compile(r":(?:class|meth|attr|func|mod|exc):`~?([^`]+)`")
_LITERAL = re.compile(r"``([^`]+)``")
_SIGNATURE_WIDTH = 100
#: docs/SETTINGS.md describes the fields of classes below this package
_SETTINGS = "forebay.settings."


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: literals and roles become code, a block after ``::`` a block of Python."""
    lines: list[str] = []
    block: list[str] | None = None
    for line in [*inspect.cleandoc(docstring).splitlines(), ""]:
        if block is not None and (line.startswith(" ") or not line):
            block.append(line)
            continue
        if block is not None:
            lines += _fenced(block)
            block = None
        if line.endswith("::"):
            lines.append(line[:-1] if line.strip() != "::" else "")
            block = []
        else:
            lines.append(line)
    if block is not None:
        lines += _fenced(block)
    text = "\n".join(lines).strip()
    return re.sub(r"\n{3,}", "\n\n", _outside_code(text))


def _fenced(block: list[str]) -> list[str]:
    code = textwrap.dedent("\n".join(block)).strip("\n")
    return ["", "```python", *code.splitlines(), "```", ""]


def _outside_code(text: str) -> str:
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else _LITERAL.sub(r"`\1`", _ROLE.sub(r"`\1`", part)) for part in parts
    )


def class_section(name: str, cls: type[Any], *, made_by_users: bool = True) -> Iterator[str]:
    """Yield the Markdown of a class: signature, docstring, fields, and a section for each public member.

    ``made_by_users``: whether to show how to make an object of it.
    """
    yield f"## {name}\n"
    if made_by_users:
        yield _code(_class_signature(name, cls))
    if own := own_docstring(cls):
        yield markdown(own) + "\n"
    if cls.__module__.startswith(_SETTINGS):
        return
    if rows := list(fields(cls)):
        yield "\n".join(["| field | type | default |", "| --- | --- | --- |", *rows]) + "\n"
    for member, value in members(cls):
        yield f"### {name}.{member}\n"
        yield _code(_member_signature(member, value))
        yield markdown(inspect.getdoc(_documented(value)) or "") + "\n"


def value_section(name: str, value: Any, *, made_by_users: bool = True) -> Iterator[str]:
    """Yield the Markdown of a class, a function or a type alias, whichever ``value`` is."""
    if inspect.isclass(value):
        yield from class_section(name, value, made_by_users=made_by_users)
        return
    yield f"## {name}\n"
    if inspect.isfunction(value):
        yield _code(_function_signature(name, value))
        yield markdown(inspect.getdoc(value) or "") + "\n"
    else:
        yield _code(f"{name} = {re.sub(r'[a-z_]+[.]', '', str(value))}")


def members(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that users call, in the order of their definition, base classes last.

    Fields of dataclasses and structs are no members here. Members of classes outside this repository are omitted.
    """
    seen = set(_field_names(cls))
    for base in cls.__mro__:
        if base is object or base.__module__.partition(".")[0] in (
            "msgspec",
            "typing",
            "pyspark",
            "builtins",
            "collections",
            "enum",
        ):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen or not _is_member(value):
                continue
            seen.add(name)
            yield name, value


def undocumented(name: str, value: Any) -> Iterator[str]:
    """Yield each name without a docstring: the value's own, its members' and its fields' that no docstring mentions."""
    if not inspect.isclass(value):
        if inspect.isfunction(value) and not inspect.getdoc(value):
            yield name
        return
    if not own_docstring(value):
        yield name
    for member, found in members(value):
        if not inspect.getdoc(_documented(found)):
            yield f"{name}.{member}"
    if value.__module__.startswith(_SETTINGS):
        return
    described = " ".join(base.__doc__ or "" for base in value.__mro__ if base is not object)
    for field in _field_names(value):
        if not re.search(rf"\b{re.escape(field)}\b", described):
            yield f"{name}.{field} (mention ``{field}`` in the docstring of its class)"


def own_docstring(cls: type[Any]) -> str:
    """Return the docstring that the class itself has, without the one that dataclasses and named tuples generate."""
    text = cls.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


def fields(cls: type[Any]) -> Iterator[str]:
    """Yield a row of the table of fields for each public field of a dataclass, a struct or a named tuple."""
    hints = _hints(cls)
    for name in _field_names(cls):
        yield f"| `{name}` | {_cell(_text(hints.get(name, '')))} | {_default(cls, name)} |"


def _field_names(cls: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        names = tuple(field.name for field in dataclasses.fields(cls))
    elif issubclass(cls, msgspec.Struct):
        names = cls.__struct_fields__
    else:
        names = getattr(cls, "_fields", ())
    return tuple(name for name in names if not name.startswith("_"))


def _default(cls: type[Any], name: str) -> str:
    if dataclasses.is_dataclass(cls):
        field = next(field for field in dataclasses.fields(cls) if field.name == name)
        if field.default_factory is not dataclasses.MISSING:
            return _cell(repr(field.default_factory()))
        return "required" if field.default is dataclasses.MISSING else _cell(_shown(field.default))
    if issubclass(cls, msgspec.Struct):
        found = next(field for field in msgspec.structs.fields(cls) if field.name == name)
        if found.default_factory is not msgspec.NODEFAULT:
            return _cell(repr(found.default_factory()))
        return "required" if found.default is msgspec.NODEFAULT else _cell(_shown(found.default))
    defaults = getattr(cls, "_field_defaults", {})
    return _cell(_shown(defaults[name])) if name in defaults else "required"


def _is_member(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))


def _documented(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


def _class_signature(name: str, cls: type[Any]) -> str:
    if getattr(cls, "_is_protocol", False):
        return f"class {name}(Protocol)"
    if cls.__module__.startswith(_SETTINGS):
        return f"class {name}(**keys)"
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return f"class {name}"
    hints = _hints(cls)
    parameters = [
        parameter.replace(
            annotation=hints.get(parameter.name, parameter.annotation),
            default=_made(cls, parameter.name, parameter.default),
        )
        for parameter in signature.parameters.values()
    ]
    return _wrapped(
        f"class {name}", signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    )


def _hints(cls: type[Any]) -> dict[str, Any]:
    """Return the annotations of a class and its bases as they are written."""
    return {key: hint for base in reversed(cls.__mro__) for key, hint in vars(base).get("__annotations__", {}).items()}


def _made(cls: type[Any], name: str, default: Any) -> Any:
    """Return ``default``, or what the factory of a dataclass's field makes."""
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if field.name == name and field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
    return default


def _member_signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        returned = inspect.signature(value.fget).return_annotation if value.fget else inspect.Signature.empty
        return name if returned is inspect.Signature.empty else f"{name}: {_text(returned)}"
    return _function_signature(name, _documented(value), of_class=not isinstance(value, staticmethod))


def _function_signature(name: str, function: Any, *, of_class: bool = False) -> str:
    signature = inspect.signature(function)
    if of_class:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return _wrapped(f"def {name}", signature)


#: signs before a parameter that takes all further arguments
_STARS: Mapping[inspect._ParameterKind, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def _wrapped(head: str, signature: inspect.Signature) -> str:
    """Return the signature in one line, or with a line for each parameter if it is long."""
    shown: list[str] = []
    kind = None
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and kind not in (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            shown.append("*")
        kind = parameter.kind
        star = _STARS.get(kind, "")
        text = f"{star}{parameter.name}"
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_text(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_shown(parameter.default)}"
        shown.append(text)
    returned = signature.return_annotation
    end = "" if returned is inspect.Signature.empty else f" -> {_text(returned)}"
    line = f"{head}({', '.join(shown)}){end}"
    if len(line) <= _SIGNATURE_WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {part}," for part in shown), f"){end}"])


def _shown(default: Any) -> str:
    """Return a default as source code; addresses in memory and private names say nothing to a reader."""
    text = repr(default)
    if " at 0x" in text or text.startswith("<"):
        return getattr(default, "__name__", "…")
    return text


def _text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation).replace("typing.", "")


def _cell(code: str) -> str:
    return "`" + code.replace("|", "\\|") + "`" if code else ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"
