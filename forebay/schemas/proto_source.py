"""Protobuf files that a registry has as text: compiled to descriptors by protoc, as grpcio-tools has it.

It runs in a process of its own, so that a text which ends it ends nothing else, and what it says can be told.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from forebay.errors import UnreachableError, UsageError
from forebay.kafka.registry import missing_extra

#: of one schema with all that it refers to
_COMPILE_SECONDS = 60.0
_WORDS_LENGTH_MAX = 1_000
#: steps that begin with a letter or digit: no name leads out of the folder, nor is it taken for an option of protoc
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
        with TemporaryDirectory(prefix="forebay-proto-") as folder:
            made = _by_protoc(Path(folder), texts, given.SerializeToString())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"protoc could not run: {type(error).__name__}: {error}") from None
    found = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(made).file}
    return tuple(found[name].SerializeToString() for name, _ in texts)


def _by_protoc(folder: Path, texts: Sequence[tuple[str, str]], known: bytes) -> bytes:
    # nothing of a text's name lies where Python would look for modules
    source, given, made = folder / "source", folder / "known", folder / "made"
    for name, text in texts:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    given.write_bytes(known)
    command = [
        sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={source}", f"--descriptor_set_in={given}",
        f"--descriptor_set_out={made}", *(name for name, _ in texts),
    ]  # fmt: skip
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS
    )
    if done.returncode:
        said = [line for line in done.stderr.replace(f"{source}/", "").split("\n") if line and not _LOGGED.match(line)]
        words = "; ".join(said)
        raise UsageError(f"protoc does not take it: {words[:_WORDS_LENGTH_MAX] or f'it ended with {done.returncode}'}")
    return made.read_bytes()
