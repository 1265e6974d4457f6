"""Compiles the text of Protobuf files to descriptors, by the protoc of grpcio-tools.

protoc runs in a separate process, so that a text that crashes it crashes nothing else, and its output can be reported.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from forebay.kafka.registry.client import missing_extra
from forebay.model.errors import UnreachableError, UsageError
from forebay.process.clock import SystemClock

#: timeout for one schema with all that it refers to
_COMPILE_SECONDS = 60.0
#: processor time for the same, which some texts take quadratically; a text of 2 MB with 60,000 messages takes 1.3 s
_CPU_SECONDS = 10
#: maximum files, which two processes hold open, and total characters of their names, which are arguments of protoc
_FILES_MAX = 500
_NAMES_LENGTH_MAX = 50_000
#: maximum bytes of protoc's output that are kept
_OUTPUT_MAX = 65_536
_MESSAGE_LENGTH_MAX = 1_000
#: signals of the system or a user, not of a fault in protoc
_FOREIGN_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: each part begins with a letter, digit or _, so that no name is an option of protoc or a file of this machine
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.proto")
#: log lines of protoc's libraries
_LOGGED = re.compile(r"WARNING: All log messages|[IWE]\d{4} ")
_IMPORT = re.compile(r'\bimport\s+(?:(?:public|weak|option)\s+)?["\']([^"\'\n]+)["\']')


def imports_of(text: str) -> list[str]:
    """Return the imports of ``text``, possibly with some that are only in a comment."""
    return _IMPORT.findall(text)


@lru_cache(maxsize=64)
def compiled(texts: tuple[tuple[str, str], ...], known: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the FileDescriptorProto of each of ``texts`` (name, .proto file). ``known``: descriptors of their other imports.

    Raises UsageError with protoc's message if a text does not compile, or if it takes too much processor time; UnreachableError
    if this machine can't run protoc now.
    """
    try:
        import grpc_tools  # noqa: F401 - the process that is started imports it
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise UnreachableError(str(missing_extra(error))) from None  # a fault of this machine, not of a record
    if len(texts) > _FILES_MAX or sum(len(name) for name, _ in texts) > _NAMES_LENGTH_MAX:
        raise UsageError(
            f"it consists of {len(texts)} Protobuf files; allowed are {_FILES_MAX}, with {_NAMES_LENGTH_MAX} characters in all "
            "names: put its messages into fewer files"
        )
    for name, _ in texts:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name[:_MESSAGE_LENGTH_MAX]!r} is not a name of a Protobuf file; allowed are names like shop/orders.proto"
            )
    given = descriptor_pb2.FileDescriptorSet(file=map(descriptor_pb2.FileDescriptorProto.FromString, known))
    try:
        made = _by_protoc(texts, given.SerializeToString())
    except OSError as error:
        raise UnreachableError(f"cannot run protoc: {type(error).__name__}: {error}") from None
    found = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(made).file}
    return tuple(found[name].SerializeToString() for name, _ in texts)


def _by_protoc(texts: Sequence[tuple[str, str]], known: bytes) -> bytes:
    with ExitStack() as opened:

        def nameless(content: bytes = b"") -> BinaryIO:
            """Return a file without a name, which the system deletes with the last process that has it open."""
            file = opened.enter_context(TemporaryFile())
            file.write(content)
            file.seek(0)
            return cast(BinaryIO, file)

        sources = {name: nameless(text.encode()) for name, text in texts}
        given, made = nameless(known), nameless()
        command = [
            sys.executable, "-m", "grpc_tools.protoc", *(f"--proto_path={name}={_path(file)}" for name, file in sources.items()),
            f"--descriptor_set_in={_path(given)}", f"--descriptor_set_out={_path(made)}", *sources,
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=[file.fileno() for file in (*sources.values(), given, made)],
        ) as process:  # fmt: skip
            try:
                _limit(process.pid)
                said = _output(process)
            finally:
                process.kill()  # without effect if it has ended
        code = process.returncode
        if code == -signal.SIGXCPU:
            raise UsageError(
                f"protoc was ended: it took more than {_CPU_SECONDS} s of processor time; make the schema smaller, such as with "
                "fewer messages, fields and reserved ranges"
            )
        if -code in _FOREIGN_SIGNALS:
            raise UnreachableError(f"cannot run protoc: signal {-code} ended it, as at a lack of memory")
        if code:
            for name, file in sources.items():
                said = said.replace(f"{_path(file)}:", f"{name}:")
            message = "; ".join(line for line in said.split("\n") if line and not _LOGGED.match(line))
            raise UsageError(f"protoc refused it: {message[:_MESSAGE_LENGTH_MAX] or f'exit code {code}'}")
        made.seek(0)
        return made.read()


def _limit(pid: int) -> None:
    """Limit the processor time of a child; the limit leaves no core dump."""
    with suppress(PermissionError, ProcessLookupError):  # a filter of system calls: then only the timeout ends it
        for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, _CPU_SECONDS)):
            _, hard = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _output(process: subprocess.Popen[bytes]) -> str:
    """Return the beginning of what ``process`` writes to stderr, and wait for its end. Raises UnreachableError at the timeout."""
    clock = SystemClock()
    until = clock.monotonic() + _COMPILE_SECONDS
    stderr = cast(BinaryIO, process.stderr).fileno()
    readable = select.poll()
    readable.register(stderr, select.POLLIN)
    kept = b""
    while readable.poll(max(0.0, until - clock.monotonic()) * 1_000):
        part = os.read(stderr, _OUTPUT_MAX)
        if not part:
            process.wait()  # nothing else has this end of the pipe
            return kept.decode(errors="replace")
        kept += part[: _OUTPUT_MAX - len(kept)]  # the rest is dropped, so that protoc can end
    raise UnreachableError(
        f"cannot run protoc: it did not end within {_COMPILE_SECONDS:g} s; this machine gave it too little processor time"
    )


def _path(file: BinaryIO) -> str:
    """Return the path of an inherited file."""
    return f"/dev/fd/{file.fileno()}"
