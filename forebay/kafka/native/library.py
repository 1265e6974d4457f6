"""The compiled library, with the functions of the librdkafka that confluent-kafka has loaded.

The library is a plug-in of librdkafka (``plugin.library.paths``), so that it receives the handle of a client from librdkafka
itself. It calls only functions of librdkafka's public API.
"""

from __future__ import annotations

import ctypes as c
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np

_log = logging.getLogger("forebay.kafka")

#: where the build puts the compiled ``gather.c``
PATH = Path(__file__).with_name("gather.so")
#: what this module expects of ``forebay_version``
_VERSION = 1

#: the C structure ``group``
GROUP: Any = np.dtype(
    [
        *((name, np.int64) for name in ("topic", "begin", "end", "key_bytes", "value_bytes")),
        *((name, np.int64) for name in ("header_count", "header_name_bytes", "header_value_bytes")),
        *((name, np.int64) for name in ("null_keys", "null_values", "null_headers")),
        *((name, np.int32) for name in ("partition", "error", "leader_epoch", "reserved")),
    ]
)

#: the C structure ``library``: its fields, and the functions of librdkafka in them
_FUNCTIONS = {
    "consume": "rd_kafka_consume_batch_queue",
    "destroy": "rd_kafka_message_destroy",
    "timestamp": "rd_kafka_message_timestamp",
    "leader_epoch": "rd_kafka_message_leader_epoch",
    "headers": "rd_kafka_message_headers",
    "header_at": "rd_kafka_header_get_all",
    "add_on_new": "rd_kafka_conf_interceptor_add_on_new",
}


class Functions(c.Structure):
    """The C structure ``library``: pointers to functions."""

    _fields_ = [(name, c.c_void_p) for name in _FUNCTIONS]


class Message(c.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = [
        ("error", c.c_int),
        ("topic", c.c_void_p),
        ("partition", c.c_int32),
        ("value", c.c_void_p),
        ("value_size", c.c_size_t),
        ("key", c.c_void_p),
        ("key_size", c.c_size_t),
        ("offset", c.c_int64),
        ("opaque", c.c_void_p),
    ]


class Library:
    """The functions of ``gather.c`` (``gather``) and of librdkafka (``kafka``), with their types. Raises OSError, ValueError,
    AttributeError if they do not fit each other."""

    def __init__(self, path: Path, kafka_path: str) -> None:
        self.path = path
        self.gather, self.kafka = c.CDLL(str(path)), c.CDLL(kafka_path)
        if (found := self.gather.forebay_version()) != _VERSION:
            raise ValueError(f"it has interface {found} instead of {_VERSION}; build the package again")
        self.gather.forebay_group_size.restype = c.c_size_t
        if self.gather.forebay_group_size() != GROUP.itemsize:
            raise ValueError("its structures have other sizes than expected; build the package again")
        for field, result in (("measure", c.c_int64), ("take_client", c.c_void_p), ("fill", None), ("destroy", None)):
            getattr(self.gather, f"forebay_{field}").restype = result
        kafka = self.kafka
        for name, result, arguments in (
            ("rd_kafka_version", c.c_int, []),
            ("rd_kafka_queue_new", c.c_void_p, [c.c_void_p]),
            ("rd_kafka_queue_get_partition", c.c_void_p, [c.c_void_p, c.c_char_p, c.c_int32]),
            ("rd_kafka_queue_forward", None, [c.c_void_p, c.c_void_p]),
            ("rd_kafka_queue_destroy", None, [c.c_void_p]),
            ("rd_kafka_consume_batch_queue", c.c_ssize_t, [c.c_void_p, c.c_int, c.c_void_p, c.c_size_t]),
            ("rd_kafka_topic_name", c.c_char_p, [c.c_void_p]),
            ("rd_kafka_message_errstr", c.c_char_p, [c.c_void_p]),
        ):
            function = getattr(kafka, name)
            function.restype, function.argtypes = result, arguments
        if kafka.rd_kafka_version() != confluent_kafka.libversion()[1]:
            raise ValueError(f"{kafka_path} is not the librdkafka that confluent-kafka uses")
        functions = Functions(**{field: c.cast(getattr(kafka, name), c.c_void_p) for field, name in _FUNCTIONS.items()})
        self.gather.forebay_use(c.byref(functions))

    @property
    def options(self) -> dict[str, str]:
        """Options of a client whose handle :meth:`take_client` is to return."""
        return {"plugin.library.paths": str(self.path)}

    def take_client(self) -> int | None:
        """Return the handle of the client that this thread has created last with :attr:`options`, once; None if there is none."""
        return self.gather.forebay_take_client()  # type: ignore[no-any-return]


@cache
def library() -> Library | None:
    """Return the library; None, with a line in the log, if it can't be used. ``FOREBAY_NATIVE=0`` disables it."""
    if os.environ.get("FOREBAY_NATIVE") == "0":
        return None
    try:
        if not PATH.exists():
            raise OSError("it was not compiled when the package was built, for want of a C compiler")
        return Library(PATH, _loaded_librdkafka())
    except (OSError, ValueError, AttributeError) as error:
        _log.warning("records are gathered in Python, several times slower: %s can't be used: %s", PATH, error)
        return None


def _loaded_librdkafka() -> str:
    """Return the path of the librdkafka that this process has loaded. Raises OSError if it is not a library of its own."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "librdkafka" in line}
    if len(paths) != 1:
        raise OSError(f"confluent-kafka has not loaded one shared librdkafka, but {sorted(paths) or 'none'}")
    return paths.pop()
