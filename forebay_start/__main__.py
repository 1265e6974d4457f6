"""``python -m forebay_start``: the ``forebay`` command, in any folder."""

from __future__ import annotations

import sys

from forebay_start import main

if __name__ == "__main__":
    sys.exit(main())
