#!/bin/sh
# Write requirements.lock: all packages and their dependencies for Python 3.10 to 3.13, pinned with hashes, without an index.
set -eu
cd "$(dirname "$0")/.."
exec .venv/bin/python -m uv pip compile --universal --python-version 3.10 --generate-hashes --upgrade --quiet \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
    --all-extras --group dev --group demo pyproject.toml --output-file requirements.lock
