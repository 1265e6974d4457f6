"""What is shown of a job's error: its own message and the place in the user's code, without Java's stack."""

from __future__ import annotations

import json

import pytest

from driver.batches.job.errors import ERROR_LENGTH_MAX, TRACE_LINES_MAX, describe

WORKER = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage \
0.0 (TID 0) (h1 executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1247, in main
    process()
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1239, in process
    serializer.dump_stream(out_iter, outfile)
  File "/tmp/spark-1/userFiles-2/forebay-0.1.0.zip/driver/spark_tasks.py", line 70, in read_task
    yield from read.batches
  File "/srv/etl/jobs.py", line 12, in <lambda>
    return batch.rdd.map(lambda row: carrier(row))
  File "/srv/etl/jobs.py", line 7, in carrier
    return row["carrier"]
           ~~~^^^^^^^^^^^
KeyError: 'carrier'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat org.apache.spark.api.python.PythonRunner$$anon$3.read(PythonRunner.scala:784)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/srv/etl/other.py", line 1, in other
ValueError: the second time
\t... 1 more
"""
CHAINED = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/srv/etl/jobs.py", line 7, in carrier
    return row["carrier"]
KeyError: 'carrier'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/etl/jobs.py", line 9, in carrier
    raise LookupError("no carrier\\nin the row")
  File "/usr/lib/python3.11/json/decoder.py", line 340, in decode
    raise JSONDecodeError()
LookupError: no carrier
in the row
"""


class PythonException(Exception):
    pass


def test_error_of_a_spark_task_is_its_workers_with_the_place_in_the_users_code() -> None:
    problem = describe(PythonException(WORKER))
    assert problem.error == "KeyError: 'carrier'"
    assert problem.place == '/srv/etl/jobs.py:7 in carrier: return row["carrier"]'
    assert "org.apache" not in problem.trace
    assert problem.trace.splitlines()[-1] == "KeyError: 'carrier'"


def test_of_a_chain_of_errors_the_last_one_is_shown_and_the_standard_library_is_not_the_users_code() -> None:
    problem = describe(PythonException(CHAINED))
    assert problem.error == "LookupError: no carrier in the row"
    assert problem.place.startswith("/srv/etl/jobs.py:9 in carrier: raise LookupError")
    assert "KeyError: 'carrier'" in problem.trace


def test_error_of_java_is_one_line_without_its_stack() -> None:
    problem = describe(
        PythonException(
            "An error occurred while calling o5.save.\n: java.io.IOException: no space\n\tat a.b(C.java:1)\n"
        )
    )
    assert problem.error == "PythonException: An error occurred while calling o5.save. : java.io.IOException: no space"
    assert "C.java" not in problem.trace


def test_place_is_the_innermost_frame_of_the_users_code_not_the_librarys() -> None:
    with pytest.raises(json.JSONDecodeError) as found:
        json.loads("{")
    problem = describe(found.value)
    assert problem.error.startswith("JSONDecodeError: ")
    assert problem.place == f"{__file__}:{found.traceback[0].lineno + 1} in " + (
        'test_place_is_the_innermost_frame_of_the_users_code_not_the_librarys: json.loads("{")'
    )


@pytest.mark.parametrize(
    "module", ["driver/context.py", "driver/batches/job/batch.py", "forebay/kafka/client/admin.py"], ids=["2", "3", "4"]
)
def test_place_of_an_error_that_our_own_code_raised_is_where_the_user_called_it(module: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/srv/etl/jobs.py", line 12, in process\n    rows = batch.read()\n'
        f'  File "/tmp/spark-1/forebay-0.1.0.zip/{module}", line 70, in read\n    raise ValueError("x")\n'
        "ValueError: x\n"
    )
    assert describe(PythonException(text)).place == "/srv/etl/jobs.py:12 in process: rows = batch.read()"


def test_what_is_shown_of_an_error_is_bounded() -> None:
    def deep(depth: int) -> None:
        if not depth:
            raise ValueError("x" * 100_000)
        deep(depth - 1) if depth % 2 else shallow(depth)

    def shallow(depth: int) -> None:
        deep(depth - 1)

    with pytest.raises(ValueError, match="xxx") as found:
        deep(200)
    problem = describe(found.value)
    assert len(problem.error) == ERROR_LENGTH_MAX
    assert len(problem.trace.splitlines()) == TRACE_LINES_MAX
    assert len(problem.trace) < TRACE_LINES_MAX * (ERROR_LENGTH_MAX + 1)


def test_error_with_half_a_character_can_be_written_to_the_journal() -> None:
    """json.loads gives such text for the six characters of an escaped half of a pair, so any record can bring it in."""
    problem = describe(ValueError(f"bad carrier {json.loads(chr(34) + chr(92) + 'ud800' + chr(34))!s}"))
    assert problem.error == "ValueError: bad carrier \\ud800"
    json.dumps(problem.trace).encode()
    (problem.error + problem.place + problem.trace).encode()


def test_error_whose_message_raises_is_named_by_its_class() -> None:
    class Spiteful(Exception):
        def __str__(self) -> str:
            raise KeyError("no message")

    assert describe(Spiteful()).error == "Spiteful: (no message: its __str__ raised KeyError)"
