"""Protobuf files that a registry has as text: compiled to descriptors by protoc, as grpcio-tools has it.

It runs in a process of its own, so that a text which ends it ends nothing else, and what it says can be told.
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

#: of one schema with all that it refers to
_COMPILE_SECONDS = 60.0
_WORDS_LENGTH_MAX = 1_000
#: steps that begin with a letter or digit: no name is taken for an option of protoc, nor for a file of this machine
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.proto")
#: what protoc's libraries log, on the way
_LOGGED = re.compile(r"WARNING: All log messages|[IWE]\d{4} ")
_IMPORT = re.compile(r'\bimport\s+(?:(?:public|weak|option)\s+)?["\']([^"\'\n]+)["\']')


def imports_of(text: str) -> list[str]:
    """What ``text`` imports; and maybe what a comment in it names so."""
    return _IMPORT.findall(text)


@lru_cache(maxsize=64)
def compiled(texts: tuple[tuple[str, str], ...], known: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The FileDescriptorProto of each of ``texts``, names and .proto files. ``known``: descriptors of whatever else they import.

    Raises UsageError for what does not compile, in protoc's words; UnreachableError if this machine can't do it now.
    """
    try:
        import grpc_tools  # noqa: F401 - the process that is started imports it
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise UnreachableError(str(missing_extra(error))) from None  # of this machine alone: no record is to blame
    for name, _ in texts:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a Protobuf file: allowed are those like shop/orders.proto")
    given = descriptor_pb2.FileDescriptorSet(file=map(descriptor_pb2.FileDescriptorProto.FromString, known))
    try:
        made = _by_protoc(texts, given.SerializeToString())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"protoc could not run: {type(error).__name__}: {error}") from None
    found = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(made).file}
    return tuple(found[name].SerializeToString() for name, _ in texts)


def _by_protoc(texts: Sequence[tuple[str, str]], known: bytes) -> bytes:
    with ExitStack() as opened:

        def nameless(content: bytes = b"") -> BinaryIO:
            """Gone with the last process that holds it, however that one ends."""
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
            words = "; ".join(line for line in said.split("\n") if line and not _LOGGED.match(line))
            raise UsageError(
                f"protoc does not take it: {words[:_WORDS_LENGTH_MAX] or f'it ended with {done.returncode}'}"
            )
        made.seek(0)
        return made.read()


def _path(file: BinaryIO) -> str:
    """As a process that was given it names it."""
    return f"/dev/fd/{file.fileno()}"
