"""Traces of blocks and batches for OpenTelemetry: off unless ``traces.endpoint`` is set."""
