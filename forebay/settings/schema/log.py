"""The section ``[log]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated, Literal

from forebay.settings.schema.section import Section, doc


class LogSettings(Section, frozen=True, kw_only=True):
    """The log lines that each service writes to stderr (docs/operations/logs.md)."""

    format: Annotated[
        Literal["console", "json"],
        doc('form of a log line: "console" text for people; "json" one JSON object with the fields of the event'),
    ] = "console"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], doc("lowest level of the events that are logged")
    ] = "info"
