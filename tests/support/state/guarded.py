"""Settings of services that require tokens and certificates."""

from __future__ import annotations

from pathlib import Path

from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings


def settings(folder: Path, **security: str) -> Settings:
    """``security``: its section. Urls begin with https:// where a certificate is named."""
    scheme = "https" if "cert_file" in security else "http"
    return from_values(
        {
            "stream": "s",
            "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
            "wal": {"url": f"file://{folder}/wal"},
            "driver": {"journal": f"file://{folder}/journal", "url": f"{scheme}://127.0.0.1:7080"},
            "agent": {"blocks": f"{folder}/blocks", "url": f"{scheme}://127.0.0.1:0", "host": "h1"},
            "security": security,
        }
    )
