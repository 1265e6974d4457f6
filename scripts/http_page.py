"""Writes docs/HTTP.md from the driver's OpenAPI document and the messages in ``forebay/messages/``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the packages of this tree

from driver.http.api import tracker_application
from driver.http.observation.observer import Observer
from driver.metrics.targets import targets_route
from forebay import messages
from forebay.metrics.exposition import Metrics
from forebay.metrics.route import metrics_route
from forebay.process.clock import SystemClock

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "HTTP.md"

HEAD = """\
# HTTP API

Everything that the page, the commands and the [Python client](#python-client) show or do is a request to the driver. Use the same
routes for your own tools. `scripts/http_page.py` writes this page from the code.

A running driver shows the same at `/docs`, and has the OpenAPI document at `/v1/openapi.json`.

```sh
curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:7080/v1/overview
curl -H "Authorization: Bearer $TOKEN" 'http://127.0.0.1:7080/v1/batches?failed=true&limit=10'
curl -H "Authorization: Bearer $TOKEN" -H 'content-type: application/json' -d '{}' http://127.0.0.1:7080/v1/operator/retry
```

## Conventions

- **Tokens.** Send a token as `Authorization: Bearer TOKEN`. Each route names the roles that may use it
  ([Tokens](operations/tokens.md)). A service without tokens accepts every request from its own machine.
- **Versions.** A path begins with `/v1`. A newer release adds routes and fields. Ignore fields that you do not know.
- **Numbers.** Names end with the unit: `_ms` is milliseconds, a time in milliseconds since 1970 UTC, `_seconds` and `_bytes`
  likewise. `null` means unknown or not reached yet, never zero.
- **Names.** Some fields have the names of the first release: `life` is an incarnation, `trouble` a fault. The
  [glossary](GLOSSARY.md) gives the old name of each term.
- **Pages of a list.** `limit` bounds a page. If `next` is not empty, more entries follow: request them with `after` set to
  `next`.
- **Errors.** An error has the body [`Refusal`](#refusal). The status is 400 for a wrong request, 401 for a missing or unknown
  token, 403 for a token of another role, 404 for something that does not exist, 409 for a conflict, and 503 if the driver can't
  answer now. A standby answers 503 with the URL of the leader; only `/v1/overview`, `/v1/settings` and `/v1/listeners` answer
  there too.
- **POST.** The body is JSON with the header `content-type: application/json`.

## Server-sent events

`GET /v1/events` sends `text/event-stream` until the client or the driver ends it:

| event | data | when |
| --- | --- | --- |
| `overview` | [`OverviewAnswer`](#overviewanswer) | at the beginning, and each second |
| the kind of an event for listeners, such as `batch-completed` | the event, as a web hook gets it | when it happens |
| `dropped` | the reason | the client is too slow; the stream ends |
| `end` | the reason | the driver stops, or the token is not valid any more; the stream ends |

Events of listeners have an `id` that counts them since the driver's start. Events are not repeated: after a pause, read the
lists. At most 20 clients may listen at the same time.

## Python client

[`forebay.client`](reference/client.md) has a typed method for each route of people. With several drivers it finds the one that
leads.

```python
from forebay.client import Client

with Client("http://127.0.0.1:7080", token_file="tokens") as client:
    print(client.overview().state, client.overview().lag_records)
    for batch in client.each_batch(failed=True):
        print(batch.batch_id, batch.detail)
    for event in client.events():
        print(event.kind, event.data)
```
"""

SECTIONS = {
    "people": "People and their tools",
    "queries": "Queries over the intake",
    "receivers": "Receivers",
    "agents": "Agents",
}
#: sections whose messages are shown; those of the others are between Forebay's own processes
SHOWN = ("people", "queries")


class _NoStream:
    """Stands for the stream of a driver: no request is sent to it."""

    hub: Any = None


def document() -> dict[str, Any]:
    """Return the OpenAPI document of a driver."""

    def nothing(*_: Any) -> Future[Any]:
        return Future()

    metrics = Metrics((), labels={}, release="", clock=SystemClock())
    served: Any = tracker_application(
        nothing,
        status=nothing,
        ready=lambda: None,
        release="",
        observer=cast(Observer, _NoStream()),
        more=[metrics_route(metrics), targets_route(tuple)],
    )
    return cast(dict[str, Any], served.described.openapi_schema.to_schema())


def operations(found: Mapping[str, Any], tag: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield method, path and operation of each route with the tag."""
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            if operation.get("tags") == [tag] and method != "head":
                yield method.upper(), path, operation


def page() -> str:
    """Return the whole page."""
    found = document()
    parts = [HEAD]
    shown: list[str] = []
    for tag, title in SECTIONS.items():
        parts.append(f"\n## {title}\n\n| route | roles | takes | answers | |\n| --- | --- | --- | --- | --- |\n")
        for method, path, operation in operations(found, tag):
            body = _name(operation.get("requestBody", {}))
            answer = _name(operation["responses"]["200"]) or _media_type(operation["responses"]["200"])
            parameters = [f"`{one['name']}`" for one in operation.get("parameters", ()) if one["in"] == "query"]
            taken = ", ".join([*parameters, *([_linked(body, tag)] if body else [])])
            roles = operation.get("description", "Roles: everybody").removeprefix("Roles: ")
            parts.append(
                f"| `{method} {path}` | {roles} | {taken} | {_linked(answer, tag)} | {operation['summary']} |\n"
            )
            shown += [name for name in (body, answer) if tag in SHOWN]
    parts.append("\n## Query parameters\n\n| name | type | default | meaning |\n| --- | --- | --- | --- |\n")
    parts += sorted(set(_parameters(found)))
    parts.append("\n## Messages\n")
    schemas = found["components"]["schemas"]
    for name in sorted(_reached(["Refusal", *shown], schemas)):
        parts.append(_message(name, schemas[name]))
    return "".join(parts)


def _name(content: Mapping[str, Any]) -> str:
    """Return the name of the schema of a body or of its items; "" if it has none."""
    schema = content.get("content", {}).get("application/json", {}).get("schema", {})
    schema = schema.get("items", schema)
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _media_type(content: Mapping[str, Any]) -> str:
    """Return the media type of a body that is not JSON, without parameters."""
    return next(iter(content["content"])).partition(";")[0]  # type: ignore[no-any-return]


def _linked(name: str, tag: str) -> str:
    return f"[`{name}`](#{name.lower()})" if tag in SHOWN and name[:1].isupper() else f"`{name}`" if name else ""


def _parameters(found: Mapping[str, Any]) -> Iterator[str]:
    for tag in SHOWN:
        for _, _, operation in operations(found, tag):
            for one in operation.get("parameters", ()):
                if one["in"] == "query":
                    default = one["schema"].get("default", "")
                    shown = (
                        f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else ""
                    )
                    yield f"| `{one['name']}` | {_type(one['schema'])} | {shown} | {one['description']} |\n"


def _reached(names: list[str], schemas: Mapping[str, Any]) -> set[str]:
    """Return ``names`` and the names of all messages in them."""
    found: set[str] = set()
    left = [name for name in names if name in schemas]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += re.findall(r"#/components/schemas/(\w+)", msgspec.json.encode(schemas[name]).decode())
    return found


def _message(name: str, schema: Mapping[str, Any]) -> str:
    known = getattr(messages, name, None)
    parts = [f"\n### {name}\n\n"]
    if known is not None and known.__doc__:
        parts += [f"{_markdown(paragraph)}\n\n" for paragraph in inspect.getdoc(known).split("\n\n")]  # type: ignore[union-attr]
    comments = _comments(known) if known is not None else {}
    if schema.get("properties"):
        parts.append("| field | type | meaning |\n| --- | --- | --- |\n")
    for field, kind in schema.get("properties", {}).items():
        needed = "" if field in schema.get("required", ()) else ", optional"
        parts.append(f"| `{field}` | {_type(kind)}{needed} | {comments.get(field, '')} |\n")
    return "".join(parts).rstrip("\n") + "\n"


def _comments(message: type[Any]) -> dict[str, str]:
    """Return field → the comment in its line, or in the ``#:`` line above it."""
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(message)}
    found: dict[str, str] = {}
    above = ""
    for line in inspect.getsource(message).splitlines():
        if line.strip().startswith("#:"):
            above = line.strip().removeprefix("#:").strip()
            continue
        field = re.match(r"    (\w+): ", line)
        comment = re.search(r"  # (?!noqa|type:)(.*)$", line)
        if field is not None and field[1] in wire:
            found[wire[field[1]]] = _markdown((comment[1] if comment else above).replace("|", "or"))
        above = ""
    return found


def _markdown(text: str) -> str:
    """Return a docstring's text as Markdown, in one line."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split())


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a field or parameter as text."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if choices := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(_type(choice) for choice in choices)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"map of names to {_type(inner)}" if inner else "map"
    if isinstance(kind, list):
        return " or ".join(kind)
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None and most < 2**31 - 1:
        return f"{kind} from {least or 0:g} to {most:g}"
    return str(kind)


def problems() -> list[str]:
    """Return what is wrong with the page; [] if it is what the code says."""
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page():
        return []
    return [f"{PAGE.name} is not what the driver's routes and messages say: run .venv/bin/python scripts/http_page.py"]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
