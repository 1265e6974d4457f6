"""A body does no more work than its bytes can pay for, whatever its writer's schema allows.

A fault here ends the process or never returns, so one child process with bounded time and memory decodes all of these bodies.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
import tracemalloc
from decimal import Context, Decimal
from typing import Any

import pytest

from forebay.model.errors import UsageError
from forebay.schemas.avro_limits import DECIMAL_BYTES_MAX, LEVELS_MAX, body_check
from tests.forebay.schemas.test_avro import encoded, logical, read, read_bytes, record, values

_MEMORY_BYTES = 512 << 20
_CHILD_SECONDS = 60
#: of CPU time; a case takes milliseconds
_CASE_SECONDS = 5

R = record(("x", "int"))
HUGE = 2**50


def number(value: int) -> bytes:
    """Return ``value`` as Avro encodes a long."""
    rest, made = ((value << 1) ^ (value >> 63)) & (2**64 - 1), bytearray()
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*made, rest])


def array(items: Any) -> Any:
    return {"type": "array", "items": items}


def doubled(leaf: Any, levels: int) -> Any:
    """Return a record of 2 ** ``levels`` leaves."""
    made: Any = leaf
    for level in range(levels):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": f"D{level - 1}" if level else leaf}]
        made = {"type": "record", "name": f"D{level}", "fields": fields}
    return made


def chain(length: int) -> list[Any]:
    """Return a union of records. Each can have the one before within it."""
    return [
        {
            "type": "record",
            "name": f"C{at}",
            "fields": [{"name": "a", "type": ["int", f"C{at - 1}"] if at else ["int"]}],
        }
        for at in range(length)
    ]


def within(length: int, kind: Any = None) -> Any:
    """Return a record of a null and ``kind``, by default records of one double, ``length`` levels deep.

    The null is of a union with these records, so that the schema's text is not deep.
    """
    made = [record(("a", f"L{at - 1}" if at else "double")) | {"name": f"L{at}"} for at in range(length)]
    return record(("u", ["null", *made]), ("c", kind or f"L{length - 1}")) | {"name": "W"}


def unions(kind: Any, levels: int) -> Any:
    """Return unions of null and a union within one another, the innermost with ``kind``. Avro does not allow it."""
    made = ["null", kind]
    for _ in range(levels - 1):
        made = ["null", made]
    return made


def checked(kind: Any) -> dict[str, Any]:
    """Return a record of ``kind`` whose bodies are checked, because it also has an array of doubles."""
    return record(("k", kind), ("d", array("double"))) | {"name": "K"}


def crossed(levels: int, branches: int) -> Any:
    """Return a union of records. Each has a field y of such a union one level below."""
    made: Any = "long"
    for level in range(levels):
        names = [f"X{level}_{at}" for at in range(branches)]
        below = [one["name"] for one in made] if level else made
        made = [record(("y", below if at else made)) | {"name": name} for at, name in enumerate(names)]
    return made


NULLS = array("null")
EMPTY: Any = {"type": "record", "name": "E", "fields": []}
ZEROS: Any = {"type": "record", "name": "Z", "fields": [{"name": "n", "type": "null"}, {"name": "e", "type": EMPTY}]}
ITSELF: Any = {"type": "record", "name": "S", "fields": [{"name": "s", "type": "S"}]}


def with_added(fields: int, more: Any = ()) -> Any:
    """Return a reader's schema with an array of the record E, which has ``more`` and other fields with defaults."""
    added = record(*((f"d{at}", "int") for at in range(fields)), default=0)
    return record(("x", array({**added, "name": "E", "fields": [*more, *added["fields"]]})))


#: case → type of a field "o" that the reader omits, the field's bytes, and what the cause must contain
OMITTED: dict[str, tuple[Any, bytes, str]] = {
    "recursive by a union": (["null", "R"], b"\2\2" * 20_000 + b"\2\0", "nested more than 1000 levels deep"),
    "recursive by an array": (array("R"), b"\2\2" * 20_000 + b"\2\0" + b"\0" * 20_000, "nested more than 1000 levels deep"),
    "recursive by a map": (
        {"type": "map", "values": "R"}, b"\2\0\2" * 20_000 + b"\0" * 20_001, "nested more than 1000 levels deep",
    ),
    "recursive without an end": (ITSELF, b"", "nested more than 1000 levels deep"),
    "a long chain of records": (chain(5_000), number(4_999) + b"\2" * 4_999 + b"\0\0", "nested more than 1000 levels deep"),
    "recursive by unions within one another": (
        unions("R", 150), (b"\2" * 150 + b"\2") * 900 + b"\0", "nested more than 1000 levels deep",
    ),
    "records of constant size within one another": (
        within(5_000), b"\0" + bytes(8), "nested more than 1000 levels deep",
    ),
    "an array of records of constant size within one another": (
        within(5_000, array("L4999")), b"\0\2" + bytes(8) + b"\0", "nested more than 1000 levels deep",
    ),
    "nulls": (NULLS, number(HUGE) + b"\0", "values in 10 bytes"),
    "nulls in a block of known size": (NULLS, number(-HUGE) + b"\0\0", "values in 11 bytes"),
    "nulls by the smallest number": (NULLS, number(-(2**63)) + b"\0\0", "values in 13 bytes"),
    "empty records": (array(EMPTY), number(HUGE) + b"\0", "values in 10 bytes"),
    "records of nothing": (array(ZEROS), number(HUGE) + b"\0", "values in 10 bytes"),
    "fixed without bytes": (array({"type": "fixed", "name": "F", "size": 0}), number(HUGE) + b"\0", "values in 10 bytes"),
    "many arrays of some nulls": (
        array(NULLS), number(20_000) + (number(900) + b"\0") * 20_000 + b"\0", "values in 60005 bytes",
    ),
    "a record of very many nulls": (doubled("null", 40), b"", "values in 1 bytes"),
    "a record of very many booleans": (doubled("boolean", 40), b"", "its schema covers more than its 1 bytes"),
    # fastavro does not notice the end of the bytes when it skips these
    "booleans": (array("boolean"), number(HUGE), "its schema covers more than its 9 bytes"),
    "floats": (array("float"), number(HUGE), "its schema covers more than its 9 bytes"),
    "doubles": (array("double"), number(HUGE), "its schema covers more than its 9 bytes"),
    "fixed": (array({"type": "fixed", "name": "F", "size": 3}), number(HUGE), "its schema covers more than its 9 bytes"),
    "records of doubles": (array(record(("d", "double")) | {"name": "D"}), number(HUGE), "its schema covers more than"),
    "nulls in an array of two fields": (
        record(("a", NULLS), ("b", "int")) | {"name": "T"}, number(HUGE) + b"\0\2", "values in 11 bytes",
    ),
    "texts of a negative size": (checked(array("string")), number(HUGE) + number(-1), "has -1 bytes"),
    "a number of 71 bits": (checked("long"), b"\xff" * 10 + b"\1\0", "has more than 64 bits"),
    "a branch before the first": (checked(["null", "long"]), number(-1) + b"\0\0", "a union of 2 types has no type -1"),
    "a branch after the last": (checked(["null", "long"]), number(2) + b"\0\0", "a union of 2 types has no type 2"),
    # each item takes a byte, whose absence fastavro notices
    "numbers": (array("int"), number(HUGE), "IndexError"),
    "texts": (array("string"), number(HUGE), "EOFError"),
    "unions": (array(["null", "double"]), number(HUGE), "EOFError"),
    "a map of nulls": ({"type": "map", "values": "null"}, number(HUGE), "EOFError"),
}  # fmt: skip


def cases() -> dict[str, tuple[Any, Any, bytes, str]]:
    """Return case → reader's schema, writer's schema, body, and what the cause must contain."""
    found = {
        name: (R, record(("x", "int"), ("o", kind)), b"\2" + body, why) for name, (kind, body, why) in OMITTED.items()
    }
    own = record(("x", NULLS))
    found["nulls in a column"] = (own, own, number(HUGE) + b"\0", "values in 9 bytes")
    found["records without bytes to which the reader adds fields"] = (
        with_added(10), record(("x", array(EMPTY))), number(500) + b"\0", "values in 3 bytes",
    )  # fmt: skip
    long = record(("x", logical("bytes", "decimal", precision=38)))
    found["a long decimal"] = (long, long, number(2_000_000) + b"\x7f" * 2_000_000, "a decimal has 2000000 bytes")
    fixed = record(("x", logical("fixed", "decimal", name="F", size=2_000_000, precision=38)))
    found["a long fixed decimal"] = (fixed, fixed, b"\x7f" * 2_000_000, "a decimal has 2000000 bytes")
    at = logical("long", "timestamp-millis")
    many = record(("x", at), ("o", doubled(logical("long", "timestamp-micros"), 30)))
    found["times in a billion places"] = (record(("x", at)), many, b"\2", "its schema covers more than")
    deep: Any = at
    for level in range(5):
        deep = record(("y", deep)) | {"name": f"Y{level}"}
    found["times behind many branches"] = (
        record(("x", deep)),
        record(("x", crossed(5, 100))),
        b"\0\0",
        "SchemaResolutionError",
    )
    return found


def run_all() -> None:
    """Decode each case beside two valid bodies, and print its causes and its CPU time. Runs in the child."""
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + _MEMORY_BYTES, have + _MEMORY_BYTES))
    for name, (reader, writer, body, _) in cases().items():
        began = time.process_time()
        causes = read_bytes(reader, writer, body, body).causes
        print(json.dumps([name, causes.get(0), causes.get(1), time.process_time() - began]), flush=True)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, float]]:
    """Return case → its cause and seconds, of the cases before the first one that ended the child."""
    command = [sys.executable, "-c", "from tests.forebay.schemas.test_avro_limits import run_all; run_all()"]
    try:
        output = subprocess.run(command, stdout=subprocess.PIPE, timeout=_CHILD_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    made = {}
    for name, first, second, seconds in map(json.loads, output.splitlines()):
        assert first == second
        made[name] = (first, seconds)
    return made


@pytest.mark.parametrize("name", cases())
def test_hostile_body_has_a_cause_in_little_time(name: str, outcomes: dict[str, tuple[str, float]]) -> None:
    assert name in outcomes, f"the child ended or hung after {list(outcomes)[-1:]}"
    cause, seconds = outcomes[name]
    assert cause is not None and cases()[name][3] in cause
    assert seconds < _CASE_SECONDS


def test_record_of_a_recursive_schema_is_read() -> None:
    """The reader omits the recursive field; only its depth is bounded."""
    writer = record(("x", "int"), ("next", ["null", "R"]))
    deepest = LEVELS_MAX - 1
    bodies = [b"\2\2" * deep + b"\2\0" for deep in (0, 1, deepest, deepest + 1)]
    found = read_bytes(R, writer, *bodies)
    assert [row and row["x"] for row in found.array.to_pylist()] == [1, 1, 1, None]
    assert list(found.causes) == [3]
    within_unions = record(("x", "int"), ("next", unions("R", 3)))
    found = read_bytes(R, within_unions, *[b"\2\2\2\2" * deep + b"\2\0" for deep in (333, 334)])
    assert list(found.causes) == [1]
    tree = record(("x", "int"), ("below", array("R")), ("named", {"type": "map", "values": "R"}))
    leaf = {"x": 2, "below": [], "named": {}}
    assert values(read(R, tree, {"x": 1, "below": [leaf, leaf], "named": {"a": leaf}})) == [1]


def test_records_of_constant_size_are_read_down_to_the_limit() -> None:
    deepest = LEVELS_MAX - 2  # within R and W
    for length, allowed in ((deepest, True), (deepest + 1, False)):
        assert bool(read_bytes(R, record(("x", "int"), ("o", within(length))), b"\2\0" + bytes(8)).causes) != allowed
        items = array(f"L{length - 2}")  # also within the array
        body = b"\2\0\2" + bytes(8) + b"\0"
        assert bool(read_bytes(R, record(("x", "int"), ("o", within(length, items))), body).causes) != allowed


def test_values_without_bytes_are_read_up_to_their_limit() -> None:
    for items in ("null", EMPTY, {"type": "fixed", "name": "F", "size": 0}):
        writer = record(("x", "int"), ("o", array(items)))
        body = b"\2" + number(1_000) + b"\0"
        assert values(read_bytes(R, writer, body, b"\2\0")) == [1, 1]
    own = record(("x", NULLS))
    assert values(read_bytes(own, own, number(3) + b"\0", b"\0")) == [[None] * 3, []]


def test_fields_that_only_the_reader_has_count_as_values() -> None:
    """An array's records without bytes would take memory for each of them. A record gets all of its columns."""
    empties = record(("x", array(EMPTY)))
    found = read_bytes(with_added(10), empties, *(number(items) + b"\0" for items in (90, 500)))
    assert list(found.causes) == [1]
    assert found.array.to_pylist()[0] == {"x": [{f"d{at}": 0 for at in range(10)}] * 90}
    # fields for which each record has bytes
    old = [{"name": "a", "type": "int"}]
    ints = record(("x", array({**EMPTY, "fields": old})))
    body = number(5_000) + b"\2" * 5_000 + b"\0"
    assert len(values(read_bytes(with_added(60, old), ints, body))[0]) == 5_000
    assert "values in 5003 bytes" in read_bytes(with_added(70, old), ints, body).causes[0]
    # a wide table that began with few columns, or with none
    wide = record(("x", "int"), *((f"d{at}", "int") for at in range(5_000)), default=7)
    assert values(read_bytes(wide, record(("x", "int")), b"\2")) == [1]
    assert values(read_bytes(wide, {**EMPTY, "name": "R"}, b"")) == [7]
    inner = {**wide, "name": "I"}
    reader, writer = record(("x", ["null", inner])), record(("x", ["null", record(("x", "int")) | {"name": "I"}]))
    assert values(read_bytes(reader, writer, b"\2\2"))[0]["d4999"] == 7
    # nothing is added to records in a field that the reader omits
    assert values(read_bytes(wide, record(("x", "int"), ("next", ["null", "R"])), b"\2\2" * 500 + b"\2\0")) == [1]
    reader = record(("x", with_added(50)["fields"][0]["type"]["items"]))
    assert values(read_bytes(reader, record(("x", EMPTY), ("o", array("E"))), number(900) + b"\0"))[0]["d49"] == 0


def test_omitted_arrays_are_read() -> None:
    """In blocks with and without a size."""
    kinds: tuple[Any, ...] = ("double", record(("a", "float"), ("b", "boolean")) | {"name": "I"})
    for items in kinds:
        writer = record(("x", "int"), ("o", array(items)), ("y", "int"))
        reader = record(("x", "int"), ("y", "int"))
        size = 8 if items == "double" else 5
        plain, sized = number(2) + bytes(2 * size), number(-3) + number(3 * size) + bytes(3 * size)
        found = read_bytes(reader, writer, b"\2" + plain + sized + b"\0\4", b"\2\0\4")
        assert found.array.to_pylist() == [{"x": 1, "y": 2}] * 2 and found.causes == {}
        wrong = b"\2" + number(-3) + number(3 * size - 1) + bytes(3 * size) + b"\0\4"
        assert "as the block says" in read_bytes(reader, writer, wrong).causes[0]


def test_only_schemas_whose_work_is_unbounded_cost_a_check() -> None:
    itself = record(("x", "int"), ("next", ["null", "R"]))
    wide = record(
        *((f"f{n}", ["null", "double"]) for n in range(500)),
        ("d", array("double")),
        ("m", {"type": "map", "values": "int"}),
    )
    other = record(("d", array("double")))
    assert body_check(wide, None) is None  # nothing is omitted
    assert body_check(wide, wide) is None
    assert body_check(record(("x", "int"), ("o", array("string"))), R) is None
    assert body_check(wide, other) is None  # the array is read
    assert body_check(wide, R) is not None
    assert body_check(wide, {**other, "name": "Other"}) is not None
    assert (
        body_check(wide, {**record(("e", "int")), "fields": [{"name": "e", "type": array("double"), "aliases": ["d"]}]})
        is None
    )
    assert body_check(wide, {**other, "name": "Other", "aliases": ["R"]}) is None
    assert body_check(itself, R) is not None
    assert body_check(record(*((f"n{at}", "null") for at in range(900))), None) is None
    assert body_check(record(*((f"n{at}", "null") for at in range(1_100))), None) is not None


def test_check_takes_memory_for_levels_not_for_fields() -> None:
    """The fields behind the recursive one wait in each level."""
    writer = record(("x", "int"), ("next", ["null", "R"]), *((f"n{at}", "null") for at in range(1_000)))
    check = body_check(writer, R)
    assert check is not None
    body = b"\2\2" * 900 + b"\2\0"
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="values in 1802 bytes"):
            check(body + b"\0", len(body))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_body_is_read_only_from_its_own_bytes() -> None:
    """A length beyond the end would otherwise copy the rest of the batch, for each record."""
    for kind in ("bytes", "string"):
        for size in (-5, 3, 100, HUGE):
            writer = record(("x", "int"), ("o", kind))
            found = read_bytes(R, writer, b"\2" + number(size), b"\2\2a", b"\2\2a")
            assert list(found.causes) == [0]
            own = record(("x", kind))
            assert list(read_bytes(own, own, number(size), b"\2a", b"\2a").causes) == [0]
    short: tuple[Any, ...] = ("boolean", "double", "long", {"type": "fixed", "name": "F", "size": 9})
    for omitted in short:
        found = read_bytes(R, record(("x", "int"), ("o", omitted)), b"\2", b"\2")
        assert list(found.causes) == [0, 1]  # also the last body, behind which there are no bytes


def test_length_beyond_the_end_costs_no_copy_of_other_bodies() -> None:
    size = 16 << 20
    schema = record(("x", "string"))
    short = number(size)
    bodies = [short] * 4_000 + [short + b"a" * size]
    began = time.process_time()
    assert list(read_bytes(schema, schema, *bodies).causes) == list(range(4_000))
    assert time.process_time() - began < 5


def test_schema_is_not_parsed_for_each_body() -> None:
    """A union of a thousand records would otherwise cost 20 ms for each."""
    began = time.process_time()
    assert values(read_bytes(R, [R, *chain(1_000)], *[b"\0\2"] * 1_000)) == [1] * 1_000
    assert time.process_time() - began < 5


def test_decimals_are_exact_up_to_arrows_digits() -> None:
    schema = record(("x", logical("bytes", "decimal", precision=38, scale=3)))
    long = record(("x", "bytes"))
    largest = 10**38 - 1
    numbers = (0, -1, largest, -largest)
    bodies = [
        encoded(long, {"x": one.to_bytes(size, "big", signed=True)})
        for one in numbers
        for size in (16, DECIMAL_BYTES_MAX, 40)  # a wider type repeats the sign in front
    ]
    assert values(read_bytes(schema, schema, *bodies)) == [
        Decimal(one).scaleb(-3, Context(prec=38)) for one in numbers for _ in range(3)
    ]
    tall = [
        encoded(long, {"x": one.to_bytes(DECIMAL_BYTES_MAX, "big", signed=True)}) for one in (largest + 1, 2**255 - 1)
    ]
    assert list(read_bytes(schema, schema, *tall).causes) == [0, 1]
    assert values(read_bytes(schema, schema, encoded(long, {"x": b""}))) == [Decimal("0.000")]


def test_fixed_type_of_a_negative_size_is_refused() -> None:
    writer = record(("x", "int"), ("o", array({"type": "fixed", "name": "F", "size": -1})))
    with pytest.raises(UsageError, match="the fixed type F has the size -1"):
        read_bytes(R, writer, b"\2\0")
