"""Every parser of bytes that another process, a disk or a person wrote."""

from __future__ import annotations

from tests.fuzz.answers import answer_readers
from tests.fuzz.objects import object_readers
from tests.fuzz.reader import Reader
from tests.fuzz.requests import request_readers
from tests.fuzz.schemas import schema_readers
from tests.fuzz.stored import stored_readers
from tests.fuzz.texts import text_readers


def readers() -> dict[str, Reader]:
    """Return the readers by name."""
    groups = (stored_readers, object_readers, text_readers, schema_readers, request_readers, answer_readers)
    return {name: reader for group in groups for name, reader in group().items()}
