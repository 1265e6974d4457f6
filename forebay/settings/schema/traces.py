"""The section ``[traces]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated

from forebay.settings.schema.constraints import Fraction, WebHookUrl
from forebay.settings.schema.section import Section, doc


class TraceSettings(Section, frozen=True, kw_only=True):
    """Traces of blocks and batches for an OpenTelemetry collector. They need the extra `otel` (docs/operations/traces.md)."""

    endpoint: Annotated[
        WebHookUrl | None,
        doc(
            "URL to which driver and receivers send spans, by OTLP over HTTP; if unset, no span is made",
            example="http://127.0.0.1:4318/v1/traces",
        ),
    ] = None
    share: Annotated[Fraction, doc("share of blocks and of batches that are traced")] = 1.0
