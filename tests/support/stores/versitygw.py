"""An S3 server for tests. ``python -m tests.support.stores.versitygw`` builds it (make services, make test in CI)."""

from __future__ import annotations

import sys

from tests.support.servers import debian
from tests.support.servers.go_module import GoModule

VERSITYGW = GoModule("github.com/versity/versitygw/cmd/versitygw", "1.8.0")


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(VERSITYGW.build())))
