#!/bin/sh
# Run every check that needs no broker, and fail if one of them fails.
set -u
cd "$(dirname "$0")/.."
bin=.venv/bin
failed=

run() {
    printf '%-22s' "$1" >&2
    shift
    if output=$("$@" 2>&1); then
        echo ok >&2
    else
        echo FAILED >&2
        printf '%s\n' "$output"
        failed=1
    fi
}

run format $bin/ruff format --check .
run lint $bin/ruff check .
run types $bin/mypy  # the folders are in pyproject.toml
run types-of-scripts $bin/mypy scripts
run imports $bin/lint-imports
# a checkout overwrites ignored files: a tracked .cache would replace a developer's fetched jars
run ignored sh -c 'git ls-files --cached --ignored --exclude-standard | { ! grep . ; }'
run licences $bin/python scripts/licenses.py --check
run docs $bin/python scripts/check_docs.py
run site $bin/python scripts/site_pages.py --check
run words $bin/python scripts/check_words.py
[ -z "$failed" ]
