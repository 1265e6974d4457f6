"""``python -m forebay_start`` runs the ``forebay`` command from any folder."""

from __future__ import annotations

import sys

from forebay_start import main

if __name__ == "__main__":
    sys.exit(main())
