"""The text of a service's metrics: labels, values, and how often it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from forebay.metrics.definition import REQUEST_SECONDS, Metric, counter, gauge, histogram
from forebay.metrics.exposition import FRESH_SECONDS, Metrics
from forebay.metrics.samples import Samples, Text
from forebay.process.clock import ManualClock

FAILURES = counter("forebay_test_failures_total", "Failures.", "kind", values=("a", "b"))
SECONDS = histogram("forebay_test_seconds", "Durations.", REQUEST_SECONDS)
LAG = gauge("forebay_test_lag", "Lag.", "topic")
POSITION = gauge("forebay_test_position", "A \\ and\na line.", "topic", "partition")
STATE = gauge("forebay_test_state", "State.", "state", values=("up", "down"))


def metrics(read: Callable[[Samples], None] = lambda _: None, clock: ManualClock | None = None) -> Metrics:
    return Metrics((FAILURES, SECONDS), labels={"stream": "s"}, release="1.2", clock=clock or ManualClock(), read=read)


def samples(of: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(of.render().decode())
        for sample in family.samples
    }


def test_each_sample_has_the_labels_of_the_process_and_no_counter_its_time_of_birth() -> None:
    made = metrics(lambda samples: samples.set(LAG, 7, "t"))
    made.count(FAILURES, "a", amount=3)
    made.observe(SECONDS, 0.02)
    found = samples(made)
    assert {dict(labels)["stream"] for _, labels in found} == {"s"}
    assert not [name for name, _ in found if name.endswith("_created")]
    assert found["forebay_test_failures_total", (("kind", "a"), ("stream", "s"))] == 3
    assert found["forebay_test_lag", (("stream", "s"), ("topic", "t"))] == 7
    assert found["forebay_test_seconds_bucket", (("le", "0.025"), ("stream", "s"))] == 1
    assert found["forebay_test_seconds_bucket", (("le", "0.01"), ("stream", "s"))] == 0


def test_counter_begins_at_0_for_each_known_value_and_an_unknown_value_is_left_out() -> None:
    found = samples(metrics(lambda samples: samples.set(LAG, None, "t")))
    assert found["forebay_test_failures_total", (("kind", "b"), ("stream", "s"))] == 0
    assert not [name for name, _ in found if name == "forebay_test_lag"]


def test_state_is_1_for_the_present_value_alone() -> None:
    found = samples(metrics(lambda samples: samples.states(STATE, "down")))
    assert found["forebay_test_state", (("state", "up"), ("stream", "s"))] == 0
    assert found["forebay_test_state", (("state", "down"), ("stream", "s"))] == 1


def test_values_that_a_metric_does_not_name_are_counted_together() -> None:
    """INV-6: states are free text of heartbeats."""
    found = samples(metrics(lambda samples: samples.counts(STATE, {"up": 2, **{f"state-{n}": 1 for n in range(50)}})))
    states = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "forebay_test_state"}
    assert states == {"up": 2, "down": 0, "other": 50}
    found = samples(metrics(lambda samples: samples.counts(LAG, {"t": 2})))
    assert found["forebay_test_lag", (("stream", "s"), ("topic", "t"))] == 2


@pytest.mark.parametrize("hostile", ['a"b', "a\\b", "a\nforebay_test_lag 99", "a{}= ", "☃"])
def test_hostile_label_value_makes_no_other_sample(hostile: str) -> None:
    found = samples(metrics(lambda samples: samples.set(LAG, 7, hostile)))
    assert [labels for name, labels in found if name == "forebay_test_lag"] == [(("stream", "s"), ("topic", hostile))]


def test_text_is_the_one_of_the_prometheus_client_at_each_scrape() -> None:
    """The second text reuses the beginnings of lines; a series that ended and one that is new must not confuse it."""
    scrapes: list[dict[tuple[str, ...], float]] = [
        {("a", "0"): 1, ("a", "1"): 2.5, ('q"\\\n', "☃"): 2**60},
        {("a", "1"): 1e-9, ("b", "0"): 1e300, ('q"\\\n', "☃"): True},
        {("a", "0"): -1, ("a", "1"): float("inf")},
        {},
    ]
    ours = Text({"stream": 's"'})
    for values in scrapes:
        read = Samples()
        read.series(POSITION, values.items())
        family = GaugeMetricFamily(POSITION.name, POSITION.help, labels=("stream", *POSITION.labels))
        for labels, value in values.items():
            family.add_metric(('s"', *labels), value)
        theirs = generate_latest(cast(Any, SimpleNamespace(collect=lambda family=family: [family]))).decode()
        found = ours.of(read).decode()
        assert found.splitlines()[:2] == theirs.splitlines()[:2] * bool(values)
        assert _parsed(found) == (_parsed(theirs) if values else [])


def _parsed(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_many_scrapes_at_a_time_read_the_values_once() -> None:
    clock = ManualClock()
    reads: list[Samples] = []
    made = metrics(reads.append, clock)
    threads = [threading.Thread(target=made.render) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1
    clock.advance(FRESH_SECONDS)
    made.render()
    assert len(reads) == 2


def test_two_services_of_one_process_count_apart() -> None:
    one, other = metrics(), metrics()
    one.count(FAILURES, "a")
    key = ("forebay_test_failures_total", (("kind", "a"), ("stream", "s")))
    assert (samples(one)[key], samples(other)[key]) == (1, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: counter("forebay_test_failures", "without its suffix"),
        lambda: gauge("forebay_test_lag_total", "not a counter"),
        lambda: gauge("other_lag", "of another program"),
        lambda: Metric("forebay_test_seconds", "histogram", "without buckets"),
        lambda: gauge("forebay_test_lag", "two labels", "a", "b", values=("x",)),
    ],
)
def test_definition_against_the_conventions_is_refused(wrong: Callable[[], Metric]) -> None:
    with pytest.raises(ValueError, match="metric "):
        wrong()
