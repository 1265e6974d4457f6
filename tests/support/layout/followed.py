"""Follows a value through the product's modules: which modules get it, in order, how often it passes to another module, and how
often it comes back to one.

A value is recognised by its *marks*: numbers, texts or byte strings that occur in nothing else. A call is *on the way* if one of
its arguments (not ``self``) or its result contains a mark. Reading a property of a value is no call. A value may be
read from a field that no recorded call filled. Then the call that entered the reading module is on the way too.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import pyarrow as pa

PACKAGES = frozenset(
    {"deploy", "direct", "driver", "executor_agent", "forebay", "pyspark_forebay", "receiver", "recovery", "wal"}
)
#: code of comprehensions and of imported modules: a part of the function that contains it, or run once
_PARTS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<module>"})
#: nested values that are searched for a mark, bytes that are, and items of a container
_DEPTH, _BYTES, _ITEMS = 8, 1 << 20, 200
_VARIADIC_FLAGS = (0x04, 0x08)  # *args, **kwargs


@dataclass(slots=True, eq=False)
class Call:
    """A call of a function in the product. ``caller``: the call of the product that it was made in, if there is one."""

    module: str
    code: CodeType
    thread: str
    caller: Call | None
    carries: bool = False

    @property
    def function(self) -> str:
        return f"{self.module}.{getattr(self.code, 'co_qualname', self.code.co_name)}"


@dataclass(frozen=True, slots=True)
class Step:
    """The value enters a module. ``source``: the module that passes it on; None: another thread's queue did. ``first``: whether
    the value was not there before."""

    source: str | None
    module: str
    function: str
    thread: str
    first: bool


@dataclass(frozen=True, slots=True)
class Way:
    """The steps of a value. Each pair of modules is one step, however often the value passes from one to the other."""

    steps: tuple[Step, ...]
    files: tuple[Path, ...]

    @property
    def modules(self) -> int:
        return sum(step.first for step in self.steps)

    @property
    def hops(self) -> int:
        return sum(step.source is not None for step in self.steps)

    @property
    def returns(self) -> int:
        """Hops to a module that had the value before."""
        return sum(not step.first for step in self.steps)

    @property
    def lines(self) -> int:
        """Lines of the modules that the value passes."""
        return sum(len(path.read_text().splitlines()) for path in self.files)

    def __str__(self) -> str:
        return f"{self.modules} modules with {self.lines} lines, {self.hops} hops, {self.returns} returns"


@dataclass
class Follower:
    """Records the calls of all threads that begin while :meth:`installed`, between :meth:`begin` and :meth:`end`.

    ``left_out``: prefixes of modules whose calls, and all calls inside them, are no part of the way.
    ``opaque``: names of types that hold everything, and so are searched for no mark.
    ``ignored``: (function, argument, names of types): if the argument has another type, the call and all calls inside it are
    ignored.
    """

    left_out: tuple[str, ...] = ()
    opaque: frozenset[str] = frozenset({"State"})
    ignored: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    _marks: frozenset[object] = frozenset()
    _patterns: tuple[bytes, ...] = ()
    _calls: list[Call] = field(default_factory=list)
    _open: dict[int, Call] = field(default_factory=dict)
    _recording: bool = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            self._recording = False
            sys.setprofile(None)
            threading.setprofile(None)

    def begin(self, *marks: object) -> None:
        """Record from now on. ``marks``: of the value."""
        self._marks = frozenset(marks)
        texts = (mark.to_bytes(8 if mark >> 32 else 4, "big") for mark in marks if isinstance(mark, int))
        self._patterns = (*texts, *(str(mark).encode() for mark in marks))
        self._calls.clear()
        self._recording = True

    def end(self) -> None:
        self._recording = False

    def way(self) -> Way:
        """Return the way of the value that was recorded last."""
        steps: list[Step] = []
        passed: dict[str, str] = {}  # module → its file
        pairs: set[tuple[str, str]] = set()
        for call in _on_the_way(self._calls):
            source = call.caller.module if call.caller is not None else None
            if source is not None and source not in passed and call.caller is not None:  # it waited in this module
                passed[source] = call.caller.code.co_filename
                steps.append(Step(None, source, call.caller.function, call.thread, first=True))
            if source == call.module or (source is not None and (source, call.module) in pairs):
                continue
            first = call.module not in passed
            if source is None and not first:
                continue
            if source is not None:
                pairs.add((source, call.module))
            passed.setdefault(call.module, call.code.co_filename)
            steps.append(Step(source, call.module, call.function, call.thread, first))
        return Way(tuple(steps), tuple(map(Path, passed.values())))

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._recording or event not in ("call", "return"):
            return
        code = frame.f_code
        if _module(frame) is None or code.co_name in _PARTS or code.co_filename.startswith("<"):
            return
        if event == "return":
            ended = self._open.pop(id(frame), None)
            if ended is not None and not ended.carries:
                ended.carries = not _is_property(frame) and self._marked(argument)
            return
        call = self._call(frame)
        if call is not None:
            call.carries = any(self._marked(frame.f_locals.get(name)) for name in _arguments(code))
            self._calls.append(call)
            self._open[id(frame)] = call

    def _call(self, frame: FrameType) -> Call | None:
        """Return the call that begins with ``frame``; None if it is left out."""
        caller: Call | None = None
        outer: FrameType | None = frame
        while outer is not None:
            module = _module(outer)
            if module is not None:
                if module.startswith(self.left_out) or outer.f_code.co_name == "<module>" or self._is_ignored(outer):
                    return None
                if caller is None and outer is not frame and not outer.f_code.co_filename.startswith("<"):
                    thread = threading.current_thread().name
                    caller = self._open.get(id(outer)) or Call(module, outer.f_code, thread, None)
            outer = outer.f_back
        return Call(_module(frame) or "", frame.f_code, threading.current_thread().name, caller)

    def _is_ignored(self, frame: FrameType) -> bool:
        rule = self.ignored.get(frame.f_code.co_name)
        if rule is None or rule[0] not in frame.f_locals:
            return False
        return type(frame.f_locals[rule[0]]).__name__ not in rule[1]

    def _marked(self, value: Any, depth: int = 0) -> bool:
        if isinstance(value, (int, float, str)):
            return value in self._marks
        if value is None or depth > _DEPTH or type(value).__name__ in self.opaque:
            return False
        inner: list[Any]
        match value:
            case bytes() | bytearray() | memoryview() | pa.Buffer():
                data = memoryview(value)
                return data.nbytes < _BYTES and any(pattern in bytes(data) for pattern in self._patterns)
            case pa.RecordBatch():
                if not value.num_rows or "offset" not in value.schema.names:
                    return False
                offsets: Any = value.column("offset")
                inner = [offsets[0].as_py(), offsets[-1].as_py()]
            case dict():
                inner = [*list(value)[:_ITEMS], *list(value.values())[:_ITEMS]]
            case tuple() | list() | set() | frozenset():
                inner = list(value)[:_ITEMS]
            case msgspec.Struct():
                inner = [getattr(value, name, None) for name in value.__struct_fields__]
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                inner = [getattr(value, item.name, None) for item in dataclasses.fields(value)]
            case _:
                return False
        return any(self._marked(item, depth + 1) for item in inner)


def _on_the_way(calls: list[Call]) -> list[Call]:
    """Return the calls that carry the value, and before each those that entered a module which only holds it."""
    known: set[str] = set()
    wanted: set[Call] = set()
    for call in calls:
        if not call.carries:
            continue
        inner, is_new = call, call.module not in known
        wanted.add(call)
        known.add(call.module)
        while (outer := inner.caller) is not None:
            is_new = is_new if outer.module == inner.module else outer.module not in known
            if not is_new:
                break
            wanted.add(outer)
            known.add(outer.module)
            inner = outer
    return [call for call in calls if call in wanted]


def _module(frame: FrameType) -> str | None:
    name: str = frame.f_globals.get("__name__", "")
    return name if name.partition(".")[0] in PACKAGES else None


def _arguments(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _VARIADIC_FLAGS)
    names = code.co_varnames[:count]
    return names[1:] if names[:1] in (("self",), ("cls",)) else names


def _is_property(frame: FrameType) -> bool:
    owner = type(frame.f_locals.get("self"))
    return isinstance(getattr(owner, frame.f_code.co_name, None), property)
