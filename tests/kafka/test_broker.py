"""The embedded Kafka's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forebay.tether import tethered
from tests.conftest import require_kafka
from tests.support.booted import await_end
from tests.support.wheel import ROOT

#: launches a broker, tells its process, and waits to be killed
_OWNER = """
import sys
from forebay.kafka.broker import KafkaBroker
broker = KafkaBroker(sys.argv[1])
broker.launch()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_a_broker_is_gone_when_the_process_that_runs_it_was_killed(tmp_path: Path) -> None:
    """It would hold its ports and its memory for ever, and nobody would know of it."""
    require_kafka()
    owner = subprocess.Popen(
        tethered([sys.executable, "-c", _OWNER, str(tmp_path)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        assert Path(f"/proc/{broker}").exists()
        owner.kill()
    await_end([broker])
