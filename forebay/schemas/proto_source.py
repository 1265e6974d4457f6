"""Compiles the text of Protobuf files to descriptors, by the protoc of grpcio-tools.

protoc runs in a separate process, so that a text that crashes it crashes nothing else, and its output can be reported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from forebay.kafka.registry.client import missing_extra
from forebay.model.errors import UnreachableError, UsageError

#: timeout for one schema with all that it refers to
_COMPILE_SECONDS = 60.0
_MESSAGE_LENGTH_MAX = 1_000
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

    Raises UsageError with protoc's message if a text does not compile; UnreachableError if this machine can't run protoc now.
    """
    try:
        import grpc_tools  # noqa: F401 - the process that is started imports it
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise UnreachableError(str(missing_extra(error))) from None  # a fault of this machine, not of a record
    for name, _ in texts:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a name of a Protobuf file; allowed are names like shop/orders.proto")
    given = descriptor_pb2.FileDescriptorSet(file=map(descriptor_pb2.FileDescriptorProto.FromString, known))
    try:
        made = _by_protoc(texts, given.SerializeToString())
    except (OSError, subprocess.TimeoutExpired) as error:
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
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS,
            pass_fds=[file.fileno() for file in (*sources.values(), given, made)],
        )  # fmt: skip
        if done.returncode:
            said = done.stderr
            for name, file in sources.items():
                said = said.replace(f"{_path(file)}:", f"{name}:")
            message = "; ".join(line for line in said.split("\n") if line and not _LOGGED.match(line))
            raise UsageError(f"protoc refused it: {message[:_MESSAGE_LENGTH_MAX] or f'exit code {done.returncode}'}")
        made.seek(0)
        return made.read()


def _path(file: BinaryIO) -> str:
    """Return the path of an inherited file."""
    return f"/dev/fd/{file.fileno()}"
