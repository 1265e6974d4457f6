#!/bin/sh
# Set up .venv with all packages of the project, and Java. `make setup` runs it; it may be repeated at any time.
# It needs git, make and Python 3.10 to 3.13, which PYTHON may name. It installs missing system packages by apt-get if it may (as
# root, or by sudo without a password), and otherwise prints the command to run. It respects pip's settings and environment.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
stamp=$venv/.forebay-setup

say() { printf '%s\n' "setup: $*" >&2; }

stop() {
    say "$1"
    exit 1
}

# Run apt-get install if that is allowed. $1: purpose; the rest: packages.
apt_install() {
    what=$1
    shift
    command="apt-get update && apt-get install -y --no-install-recommends $*"
    if ! command -v apt-get >/dev/null 2>&1; then
        say "$what is missing, and there is no apt-get here: install it with your system's packages ($*)"
        return 1
    fi
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        say "$what is missing; install it with: sudo sh -c '$command'"
        return 1
    fi
    say "$what is missing: $command"
    # shellcheck disable=SC2086  # as_root is empty or two words
    if ! { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >&2; then
        say "apt-get failed; try it yourself: $command"
        return 1
    fi
}

# Whether the Python $1 has a release that the project supports, and the modules $2.
fits() { "$1" -c "import $2; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null; }

# PYTHON alone, if it is set. The system's python3 comes before the one on PATH: Debian builds it with profile-guided optimization, and
# a Python that was built without takes a tenth to a fifth more time for all that is written in Python. One without the modules of a
# venv comes last.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" sys && command -v "$PYTHON"
        return
    fi
    for modules in sys,ensurepip,venv sys; do
        for candidate in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10; do
            if fits "$candidate" "$modules"; then
                command -v "$candidate"
                return
            fi
        done
    done
    return 1
}

java_of() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

find_java() {
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
        [ -n "$candidate" ] || continue
        command -v "$candidate" >/dev/null 2>&1 || continue
        case $(java_of "$candidate") in 17 | 21) return 0 ;; esac
    done
    return 1
}

install_java() {
    find_java && return
    apt_install "Java 17 or 21" openjdk-17-jre-headless && find_java && return
    say "without Java there are no Spark jobs and no real Kafka; everything else works"
}

wanted() { # the set-up depends on these: the lock, the project's description, this script, the Python
    "$1" - requirements.lock scripts/tools.lock pyproject.toml scripts/setup.sh scripts/compile_native.py forebay/kafka/native/gather.c <<'EOF'
import hashlib, pathlib, sys
print(sys.version.split()[0], *(hashlib.sha256(pathlib.Path(name).read_bytes()).hexdigest()[:16] for name in sys.argv[1:]))
EOF
}

make_venv() {
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install "Python's venv module" "python$version-venv" || apt_install "Python's venv module" python3-venv ||
            stop "then run make setup again"
    fi
    say "making $venv with $("$python" -V)"
    "$python" -m venv --clear "$venv" || stop "python -m venv failed (see above)"
}

# Every package is compared with the SHA-256 of requirements.lock, and what installs and builds with that of scripts/tools.lock.
install_packages() {
    say "installing the packages of requirements.lock"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip --upgrade >/dev/null
    pip="$venv/bin/python -m pip --disable-pip-version-check"
    # uv is several times faster than pip; if uv can't be installed or can't reach the index, pip does the same work
    if install_tool uv && uv_install; then
        return
    fi
    say "going on with pip"
    $pip install -q --require-hashes -r requirements.lock
    install_build_tools
    $pip install -q --no-deps --no-build-isolation -e .
}

# Install the release of a tool that scripts/tools.lock names, unless .venv has it. A file with another SHA-256 ends the set-up.
install_tool() {
    lines=$(sed -n "/^$1==/,/[^\\\\]\$/p" scripts/tools.lock)
    version=$(printf '%s\n' "$lines" | sed -n 's/^[^=]*==\([^ ]*\).*/\1/p')
    "$venv/bin/python" -c 'import sys; from importlib.metadata import version; sys.exit(version(sys.argv[1]) != sys.argv[2])' \
        "$1" "$version" 2>/dev/null && return
    printf '%s\n' "$lines" >"$venv/tool.lock"
    words=$($pip install -q --require-hashes --no-deps -r "$venv/tool.lock" 2>&1) && return
    case $words in
    *"DO NOT MATCH THE HASHES"*) stop "$words" ;;
    esac
    say "$1 $version could not be installed"
    return 1
}

# What builds this project's own package: hatchling is in requirements.lock.
install_build_tools() {
    install_tool editables
    for compiler in ${CC:-} cc gcc clang; do
        command -v "$compiler" >/dev/null 2>&1 && return
    done
    install_tool ziglang || say "there is no C compiler: records will be gathered in Python, several times slower"
}

# Pass pip's settings to uv, which has other names for them.
uv_install() {
    setting() { "$venv/bin/python" -m pip config get "global.$1" 2>/dev/null || "$venv/bin/python" -m pip config get "install.$1" 2>/dev/null || true; }
    : "${UV_DEFAULT_INDEX:=${PIP_INDEX_URL:-$(setting index-url)}}"
    : "${UV_INDEX:=${PIP_EXTRA_INDEX_URL:-$(setting extra-index-url)}}"
    : "${SSL_CERT_FILE:=${PIP_CERT:-$(setting cert)}}"
    for name in UV_DEFAULT_INDEX UV_INDEX SSL_CERT_FILE; do
        eval "value=\$$name"
        # shellcheck disable=SC2163,SC2154  # the name is in the variable; value comes from eval
        if [ -n "$value" ]; then export "$name"; else unset "$name"; fi
    done
    UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
    export UV_HTTP_TIMEOUT
    "$venv/bin/python" -m uv pip install -q --python "$venv/bin/python" --require-hashes -r requirements.lock &&
        install_build_tools &&
        "$venv/bin/python" -m uv pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e .
}

python=$(find_python) || stop "Python 3.10 to 3.13 was not found${PYTHON:+ by PYTHON=$PYTHON}: install it, or name it with PYTHON=/path/to/python make setup"
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted "$venv/bin/python")" ]; then
    install_java
    exit 0
fi
if ! [ -x "$venv/bin/python" ] ||
    ! "$venv/bin/python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    make_venv
fi
rm -f "$stamp"
install_packages
wanted "$venv/bin/python" >"$stamp"
install_java
say "ready: $venv/bin/forebay"
