"""The division of the tests among processes that run side by side (``make test``; ``WORKERS=0``: one process).

Most of the suite waits for servers and for killed processes, so there are more of these processes than cores. They share the
machine and one Kafka (``tests.support.kafka.shared_broker``); each has its own other servers.
"""

from __future__ import annotations

import os

import pytest
from xdist.scheduler import LoadScopeScheduling

#: where tests take seconds: these begin, and each runs in the next free process
SLOW = ("tests/crash/", "tests/disks/", "tests/integration/", "tests/recovery/", "tests/simulation/")
#: files that take longest, or start a server or a session of their own: these begin before all others; with the name of their
#: share
TOGETHER = {
    "tests/wal/storage/test_hdfs_storage.py": "hdfs",
    "tests/integration/test_hdfs_crashes.py": "hdfs",
    "tests/engines/test_spark_engine.py": "spark",
    "tests/engines/test_spark_locality.py": "spark",
    "tests/engines/test_spark_kafka_tier.py": "spark",
    "tests/engines/test_spark_decoding.py": "spark",
    "tests/engines/test_spark_outputs.py": "spark",
    "tests/engines/test_spark_state.py": "spark",
    "tests/disks/test_bad_disk_with_spark.py": "spark",
    "tests/direct/test_leaders_with_spark.py": "spark",
    "tests/direct/rdd/test_rdd.py": "spark",
    "tests/direct/stream/test_stream_with_spark.py": "spark",
    "tests/direct/intake/test_through_intake_with_spark.py": "spark",
    "tests/pyspark_forebay/test_with_spark.py": "streaming",
    "tests/pyspark_forebay/intake/test_losses.py": "streaming",
    "tests/pyspark_forebay/intake/test_with_spark.py": "streaming",
    "tests/pyspark_forebay/test_word_count.py": "streaming",
    "tests/pyspark_forebay/test_decoding_with_spark.py": "streaming",
    "tests/pyspark_forebay/intake/test_decoding.py": "streaming",
    "tests/pyspark_forebay/test_decoding_over_failures.py": "streaming",
    "tests/forebay/kafka/registry/test_registry.py": "streaming",
    "tests/forebay/kafka/registry/test_oauth.py": "streaming",
    "tests/forebay/schemas/test_decoding.py": "streaming",
    "tests/pyspark_forebay/test_like_spark.py": "like-spark",
    "tests/pyspark_forebay/test_like_spark_on_changes.py": "like-spark",
    "tests/pyspark_forebay/test_connect.py": "streaming",
    "tests/driver/outputs/test_killed.py": "outputs",
    "tests/driver/outputs/test_run.py": "outputs",
    "tests/integration/test_killed_outputs.py": "outputs",
    "tests/integration/test_kafka_security.py": "secured",
    "tests/integration/test_kafka_mistakes.py": "secured",
    "tests/forebay/kafka/client/test_inspection.py": "secured",
    "tests/wal/storage/test_storage_contract.py": "stores",
    "tests/wal/storage/test_log_on_stores.py": "stores",
    "tests/wal/storage/test_store_requests.py": "stores",
    "tests/benchmarks/test_benchmarks_run.py": "benchmarks",
    "tests/direct/test_leaders.py": "leaders",
    "tests/deploy/commands/trial/test_demo.py": "demo",
    "tests/driver/web/test_page.py": "page",
    "tests/driver/web/test_running_stream.py": "running-page",
    "tests/cluster/test_hosts.py": "hosts",
    "tests/deploy/docker/test_read_only_root.py": "read-only-root",
    "tests/deploy/test_quickstart.py": "quickstart",
    "tests/docs/test_tutorial.py": "tutorial",
    "tests/deploy/test_terminal.py": "terminal",
    "tests/forebay/metrics/test_with_prometheus.py": "prometheus",
    "tests/deploy/test_distribution.py": "distribution",
    "tests/forebay/kafka/consume/test_source.py": "source",
    "tests/forebay/kafka/native/test_native.py": "native",
    "tests/receiver/test_rebalance.py": "rebalance",
    "tests/pyspark_forebay/test_killed.py": "killed",
    "tests/pyspark_forebay/intake/test_queries.py": "intake",
    "tests/deploy/supervision/test_failing_up.py": "failing-up",
    "tests/deploy/systemd/test_systemd.py": "systemd",
    "tests/deploy/systemd/test_systemd_with_spark.py": "systemd-with-spark",
}
#: with more, tests would run into limits of others: Spark gives a planner ten seconds
_WORKERS_MORE_THAN_CORES = 3
WORKERS_MAX = 8


def share_of(node_id: str) -> str:
    """Tests of one share run one after another in one process: a file's, or what is named above, or one slow test alone."""
    path = node_id.partition("::")[0]
    return TOGETHER.get(path) or (node_id if path.startswith(SLOW) else path)


def rank(node_id: str) -> int:
    """What takes long begins, so that no process is left with it at the end."""
    path = node_id.partition("::")[0]
    return 0 if path in TOGETHER else 1 if path.startswith(SLOW) else 2


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)


def workers(config: pytest.Config) -> int:
    """How many processes ``-n auto`` starts: none for tests that were named, and whose output is to be read as it comes."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("capture") == "no":
        return 0
    return min(WORKERS_MAX, (os.cpu_count() or 1) + _WORKERS_MORE_THAN_CORES)
