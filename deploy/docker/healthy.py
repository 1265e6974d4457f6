"""The health check of a container: exit code 0 if the service of FOREBAY_HEALTH_URL answers with 200, otherwise 1.

The default is the driver's address. "none" always succeeds, for receivers, which serve no HTTP.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4.0
DEFAULT_URL = "http://127.0.0.1:7080/v1/health"


def main() -> int:
    url = os.environ.get("FOREBAY_HEALTH_URL") or DEFAULT_URL
    if url == "none":
        return 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  the container's own setting
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
