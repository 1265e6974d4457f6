"""Spans that are sent to the collector of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.model.errors import SettingsError
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from forebay.traces.spans import Spans


def spans_of(settings: Settings, service: str, release: str) -> Spans | None:
    """Return what makes the spans of this process; None if traces are off. Raises SettingsError if the extra is missing."""
    if settings.traces.endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from forebay.traces.spans import Spans
    except ImportError as error:
        raise SettingsError(
            f"traces.endpoint is set, but {error.name} is not installed: pip install 'forebay[otel]', or remove the key"
        ) from None
    # a bounded queue and a thread of its own: what does not fit is dropped
    processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.traces.endpoint))
    return Spans(
        f"forebay-{service}", settings.stream, release=release, processor=processor, share=settings.traces.share
    )
