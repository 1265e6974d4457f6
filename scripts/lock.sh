#!/bin/sh
# Write requirements.lock: all packages and their dependencies for Python 3.10 to 3.13, pinned with hashes, without an index.
# Write scripts/tools.lock in the same way: what set-up installs and builds with.
set -eu
cd "$(dirname "$0")/.."
compile() {
    .venv/bin/python -m uv pip compile --universal --python-version 3.10 --generate-hashes --upgrade --quiet \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}
compile --all-extras --group dev --group demo pyproject.toml --output-file requirements.lock
printf '%s\n' uv editables 'ziglang>=0.13' | compile - --output-file scripts/tools.lock
