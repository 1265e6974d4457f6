"""The compiled library, with the functions of the librdkafka that confluent-kafka has loaded.

The library is a plug-in of librdkafka (``plugin.library.paths``), so that it receives the handle of a client from librdkafka
itself. It calls only functions of librdkafka's public API.
"""

from __future__ import annotations

import ctypes as c
import logging
import os
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np

_log = logging.getLogger("forebay.kafka")
_lock = threading.Lock()

#: where the build puts the compiled ``gather.c``; the end of the name is not that of an extension module, since it is none
PATH = Path(__file__).with_name("gather.so.1")
#: what this module expects of ``forebay_version``
_VERSION = 2

#: librdkafka's option
_PLUGINS = "plugin.library.paths"

#: the C structure ``group``
GROUP: Any = np.dtype(
    [
        *((name, np.int64) for name in ("topic", "begin", "end", "key_bytes", "value_bytes")),
        *((name, np.int64) for name in ("header_count", "header_name_bytes", "header_value_bytes")),
        *((name, np.int64) for name in ("null_keys", "null_values", "null_headers")),
        *((name, np.int32) for name in ("partition", "is_error", "leader_epoch", "reserved")),
    ]
)

#: the C structure ``item``: addresses of a message (0 for an error) and of its event
ITEM: Any = np.dtype([("message", np.uint64), ("event", np.uint64)])

#: the C structure ``library``: its fields, and the functions of librdkafka in them
_FUNCTIONS = {
    "poll": "rd_kafka_queue_poll",
    "type": "rd_kafka_event_type",
    "next_message": "rd_kafka_event_message_next",
    "error": "rd_kafka_event_error",
    "error_text": "rd_kafka_event_error_string",
    "place_of": "rd_kafka_event_topic_partition",
    "destroy_place": "rd_kafka_topic_partition_destroy",
    "destroy": "rd_kafka_event_destroy",
    "timestamp": "rd_kafka_message_timestamp",
    "leader_epoch": "rd_kafka_message_leader_epoch",
    "headers": "rd_kafka_message_headers",
    "header_at": "rd_kafka_header_get_all",
    "add_on_new": "rd_kafka_conf_interceptor_add_on_new",
}


#: function → its result and arguments
_GATHER_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "version": (c.c_int, []),
    "group_size": (c.c_size_t, []),
    "use": (None, [c.c_void_p]),
    "take_client": (c.c_void_p, []),
    "receive": (c.c_int64, [c.c_void_p, c.c_int, c.c_int, c.c_void_p, c.c_int64]),
    "measure": (c.c_int64, [c.c_void_p, c.c_int64, c.c_int, c.c_void_p]),
    "error": (c.c_int, [c.c_void_p, c.c_void_p, c.c_size_t, *[c.c_void_p] * 3]),
    "fill": (None, [c.c_void_p, c.c_int64, *[c.c_void_p] * 9]),
    "fill_headers": (None, [c.c_void_p, c.c_int64, *[c.c_void_p] * 7]),
    "destroy": (None, [c.c_void_p, c.c_int64]),
}
_KAFKA_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "version": (c.c_int, []),
    "queue_new": (c.c_void_p, [c.c_void_p]),
    "queue_get_partition": (c.c_void_p, [c.c_void_p, c.c_char_p, c.c_int32]),
    "queue_forward": (None, [c.c_void_p, c.c_void_p]),
    "queue_destroy": (None, [c.c_void_p]),
    "topic_name": (c.c_char_p, [c.c_void_p]),
    "handle_mock_cluster": (c.c_void_p, [c.c_void_p]),
    "mock_group_initial_rebalance_delay_ms": (None, [c.c_void_p, c.c_int32]),
}


class Functions(c.Structure):
    """The C structure ``library``: pointers to functions."""

    _fields_ = [(name, c.c_void_p) for name in _FUNCTIONS]


class MessageStruct(c.Structure):
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
        kafka = self.kafka
        for functions, prefix, typed in ((self.gather, "forebay_", _GATHER_TYPES), (kafka, "rd_kafka_", _KAFKA_TYPES)):
            for name, (result, arguments) in typed.items():
                function = getattr(functions, prefix + name)
                function.restype, function.argtypes = result, arguments
        if (found := self.gather.forebay_version()) != _VERSION:
            raise ValueError(f"it has interface {found} instead of {_VERSION}; build the package again")
        if self.gather.forebay_group_size() != GROUP.itemsize:
            raise ValueError("its structures have other sizes than expected; build the package again")
        if kafka.rd_kafka_version() != confluent_kafka.libversion()[1]:
            raise ValueError(f"{kafka_path} is not the librdkafka that confluent-kafka uses")
        self.functions = Functions(
            **{field: c.cast(getattr(kafka, name), c.c_void_p) for field, name in _FUNCTIONS.items()}
        )
        self.use(self.functions)

    def use(self, functions: Functions) -> None:
        """Let ``gather.c`` call ``functions`` from now on. For all threads, so only before the first client."""
        self.gather.forebay_use(c.byref(functions))

    def options(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``own``, the options of a client, with this plug-in: :meth:`take_client` then returns the client's handle."""
        plugins = [own[_PLUGINS]] if own.get(_PLUGINS) else []
        return {**own, _PLUGINS: ";".join([*plugins, str(self.path)])}

    def take_client(self) -> int | None:
        """Return the handle of the client that this thread has created last with :meth:`options`, once; None if there is none."""
        return self.gather.forebay_take_client()  # type: ignore[no-any-return]


_TIMESTAMP = c.CFUNCTYPE(c.c_int64, c.c_void_p, c.POINTER(c.c_int))
_EPOCH = c.CFUNCTYPE(c.c_int32, c.c_void_p)


def check(native: Library) -> None:
    """Gather made-up messages and compare the buffers. Raises ValueError if they are wrong."""

    def timestamp(_: Any, kind: Any) -> int:
        kind[0] = 2
        return 77

    texts = [(b"k", b"value"), (None, b""), (b"", None)]
    made = [
        MessageStruct(
            topic=1, partition=2, offset=10 + number, key=c.cast(c.c_char_p(key), c.c_void_p), key_size=len(key or b""),
            value=c.cast(c.c_char_p(value), c.c_void_p), value_size=len(value or b""),
        )
        for number, (key, value) in enumerate(texts)
    ]  # fmt: skip
    callbacks = _TIMESTAMP(timestamp), _EPOCH(lambda _: 5)
    native.use(Functions(timestamp=c.cast(callbacks[0], c.c_void_p), leader_epoch=c.cast(callbacks[1], c.c_void_p)))
    try:
        items: Any = np.zeros(len(made), ITEM)
        items["message"] = [c.addressof(message) for message in made]
        groups: Any = np.zeros(len(made), GROUP)
        count = len(made)
        found = native.gather.forebay_measure(items.ctypes.data, count, 0, groups.ctypes.data)
        sizes = groups[0][["end", "key_bytes", "value_bytes", "null_keys", "null_values", "partition", "leader_epoch"]]
        if found != 1 or sizes.tolist() != (3, 1, 5, 1, 1, 2, 5):
            raise ValueError(f"it measures {groups[:found]} for three made-up messages")
        ends, bits, bytes_ = np.zeros((2, 4), np.int32), np.zeros((2, 1), np.uint8), np.zeros((2, 5), np.uint8)
        numbers, kinds = np.zeros((2, 3), np.int64), np.zeros(3, np.int32)
        columns = [part[row] for row in (0, 1) for part in (bytes_, ends, bits)]
        native.gather.forebay_fill(
            items.ctypes.data, count, *(column.ctypes.data for column in (*columns, *numbers, kinds))
        )
        filled = (
            [column.tolist() for column in (*ends, *bits, *numbers, kinds)],
            *map(bytes, (bytes_[0, :1], bytes_[1])),
        )
        wanted = [[0, 1, 1, 1], [0, 5, 5, 5], [0b101], [0b011], [10, 11, 12], [77] * 3, [1] * 3], b"k", b"value"
        if filled != wanted:
            raise ValueError(f"it makes {filled} of three made-up messages")
    finally:
        native.use(native.functions)


def library() -> Library | None:
    """Return the library; None, with a line in the log, if it can't be used. Thread-safe."""
    with _lock:
        return _load()


@cache
def _load() -> Library | None:
    try:
        if not PATH.exists():
            raise OSError("it is missing; `python scripts/compile_native.py` builds it, or says why it can't be built")
        found = Library(PATH, _loaded_librdkafka())
        check(found)
        return found
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


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)
