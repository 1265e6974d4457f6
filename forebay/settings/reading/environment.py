"""Environment variables that override keys of ``forebay.toml``.

``FOREBAY__SECTION__KEY`` overrides a key (``FOREBAY__RECEIVER__BLOCK_INTERVAL=1s``). A pass-through key of librdkafka or Spark
is written with underscores for dots (``FOREBAY__KAFKA__BOOTSTRAP_SERVERS``), one of a store's client below its scheme
(``FOREBAY__STORAGE__S3__ENDPOINT_URL``). Commas separate the items of a list (``FOREBAY__KAFKA__TOPICS=a,b``), a table is written
as in TOML, and an empty text unsets an optional key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from forebay.model.errors import SettingsError
from forebay.settings import reference
from forebay.settings.reading.mistakes import Mistakes
from forebay.settings.reading.open_sections import flat
from forebay.settings.reading.similar import did_you_mean
from forebay.settings.schema import Settings
from forebay.settings.stores import has_text_options

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

PREFIX = "FOREBAY__"


def override(raw: dict[str, Any], environment: Mapping[str, str], mistakes: Mistakes) -> None:
    """Write the overrides into ``raw``, a file's values, and note in ``mistakes`` which variable set which key."""
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX):
            try:
                if not _is_unicode(text):
                    raise SettingsError("is not valid UTF-8")
                mistakes.variables[_override(raw, name, text)] = name
            except SettingsError as error:
                mistakes.add_at(name, str(error))


def _is_unicode(text: str) -> bool:
    """Return False for a variable whose bytes are not UTF-8, which Python shows as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _override(raw: dict[str, Any], name: str, text: str) -> str:
    """Write one override into ``raw`` and return its key. Raises SettingsError, without the variable's name."""
    first, _, rest = name.removeprefix(PREFIX).partition("__")
    section = first.lower()
    if not rest and section in (top := reference.keys_by_section()[""]) and section != "storage":
        raw[section] = _value(text, get_type_hints(Settings)[section])
        return top[section].path
    sections = reference.sections()
    if section not in sections and section != "storage":
        known_sections = [*sections, "storage"]
        meant = did_you_mean(section, known_sections)
        raise SettingsError(f"there is no section [{section}]; {meant}sections are {', '.join(known_sections)}")
    if not rest:
        raise SettingsError(f"names a section; write {PREFIX}{first}__KEY")
    table = raw.setdefault(section, {})
    if not isinstance(table, dict):
        raise SettingsError(f"the file's {section} is not a section: write [{section}] and its keys below it")
    known = sections.get(section)
    if known is not None and rest.lower() in reference.keys_by_section()[section]:
        key = rest.lower()
        table[key] = _value(text, get_type_hints(known)[key])
    elif section == "storage":
        key = _override_store(table, rest, text)
    elif reference.is_open(section):
        key = _open_key(table, rest)
        table[key] = text
    else:
        key = rest.lower()
        table[key] = text  # refused as an unknown key, with what is allowed
    return f"{section}.{key}"


def _override_store(table: dict[str, Any], written: str, text: str) -> str:
    """Set the key of a store's section that ``S3__ENDPOINT_URL`` means, and return it."""
    first, _, rest = written.partition("__")
    scheme = first.lower()
    options = table.setdefault(scheme, {})
    if not rest or not isinstance(options, dict):
        raise SettingsError("write FOREBAY__STORAGE__SCHEME__KEY, as in FOREBAY__STORAGE__S3__ENDPOINT_URL")
    if has_text_options(scheme):
        key = _open_key(options, rest)
        options[key] = text
    else:
        key = rest.lower()
        typed = text in ("true", "false") or text.startswith("{") or re.fullmatch(r"[0-9]{1,18}", text)
        options[key] = _toml(text) if typed else text
    return f"{scheme}.{key}"


def _open_key(table: dict[str, Any], written: str) -> str:
    """Return the key of an open section that ``BOOTSTRAP_SERVERS`` means: one of the file's, or the same with dots.

    All capitals are read as small letters; otherwise letters stay (``spark_driver_bindAddress``). A double underscore
    stands for one underscore. A key of the file that differs only in such signs is the one meant, and is taken out of
    ``table``, also where it was nested.
    """

    def plain(key: str) -> str:
        return re.sub(r"[._]+", "_", key).lower()

    for key in flat(table):
        if plain(key) == plain(written):
            _remove(table, key)
            return key
    letters = written.lower() if written.isupper() else written
    return "_".join(part.replace("_", ".") for part in letters.split("__"))


def _remove(table: dict[str, Any], flat_key: str) -> None:
    for key, value in list(table.items()):
        if key == flat_key:
            del table[key]
        elif isinstance(value, dict) and flat_key.startswith(f"{key}."):
            _remove(value, flat_key.removeprefix(f"{key}."))


def _value(text: str, wanted: Any) -> Any:
    """Return the text of a variable as the type that its key has in TOML; text that does not fit is refused later."""
    choices = get_args(wanted)
    if type(None) in choices and not text:
        return None
    if wanted is int:
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text
    if wanted is float:
        return float(text) if re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", text) else text
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    takes_list = get_origin(wanted) is tuple or ("," in text and any(get_origin(choice) is tuple for choice in choices))
    takes_table = dict in (get_origin(wanted), *map(get_origin, choices))
    if text[:1] in ("{", "[") and (takes_list or takes_table):
        return _toml(text)
    if takes_list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits, and for deep nesting
        raise SettingsError(f"the value is not valid TOML: {error}") from None  # it may hold a secret
