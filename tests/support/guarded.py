"""Settings of services that ask for tokens and certificates."""

from __future__ import annotations

from pathlib import Path

from forebay.settings import Settings, from_values


def settings(folder: Path, **security: str) -> Settings:
    return from_values(
        {
            "stream": "s",
            "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
            "wal": {"url": f"file://{folder}/wal"},
            "driver": {"journal": f"file://{folder}/journal"},
            "agent": {"blocks": f"{folder}/blocks"},
            "security": security,
        }
    )
