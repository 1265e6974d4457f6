"""A process that is killed while it accepts losses: each loss is in the journal once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from direct.checkpoint.checkpoint import Checkpoint
from direct.checkpoint.leadership import lead
from direct.checkpoint.losses import Loss, journal_losses
from driver.journal.state import State
from driver.tracker.requests import AllocateSpans, BeginSpans
from forebay.kafka.consume.spans import OffsetRange
from forebay.process.clock import SystemClock
from recovery import audit
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.checkpoints import BATCH
from wal.storage import open_storage

_ACCEPT = """
import os, sys
from pathlib import Path
from tests.direct.checkpoint.test_killed_acceptance import accepted_in
while True:
    child = os.fork()
    if not child:
        accepted_in(Path(sys.argv[1]))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != -9:
        sys.exit(code)
"""

LOSSES = [
    Loss("batch", "t/0[10, 12)", "", BATCH),
    Loss("gap", "t/0[20, 25)", "", goes_on_at=25),
    Loss("created-again", "u/0", "", goes_on_at=0, topic_id="new"),
]


def accepted_in(folder: Path) -> None:
    """Accepts what is left of LOSSES, as a person does."""
    with lead(open_storage(folder.as_uri()), "s", 1, SystemClock(), lambda _: None) as led:
        journal_losses(led.loop.ask, _left(led.state), 5, "accepted by ann")


def _left(state: State) -> list[Loss]:
    left = [] if state.batches[BATCH].lost else LOSSES[:1]
    left += LOSSES[1:2] if state.next_offsets["t/0"] == 20 else []
    return left + (LOSSES[2:] if state.partitions["u/0"].incarnation.number == 1 else [])


def test_kill_while_losses_are_accepted_leaves_each_journalled_or_not(tmp_path: Path) -> None:
    """INV-7: durable ones are there once; the rest is found again."""
    storage = open_storage(tmp_path.as_uri())
    with lead(storage, "s", 1, SystemClock(), lambda _: None) as led:
        led.loop.ask(BeginSpans({"t/0": 10, "u/0": 3}, {"t": "id", "u": "old"}, 1, "given"))
        led.loop.ask(AllocateSpans((OffsetRange("t", 0, 10, 20, "id"), OffsetRange("u", 0, 3, 9, "old")), 2))
    places = [
        f"journal.{place}:{kind}"
        for kind in ("LossAccepted", "SpansSkipped", "SpansEnded")
        for place in ("before-write", "after-sync")
    ]
    (tmp_path / "hits").mkdir()
    environment = {
        **os.environ,
        "FOREBAY_FAILPOINTS": ",".join(f"{place}=kill" for place in places),
        "FOREBAY_FAILPOINT_DIR": str(tmp_path / "hits"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _ACCEPT, str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "hits").iterdir())) == len(places)
    state = Checkpoint(tmp_path.as_uri(), "s").state()
    assert state.batches[BATCH].lost == ("t/0[10, 12)",)
    assert state.next_offsets == {"t/0": 25, "u/0": 0}
    found = audit.audit(storage, "s")
    assert found.clean
    assert [
        (incarnation.topic, incarnation.number, incarnation.start, incarnation.until)
        for incarnation in found.incarnations
    ] == [
        ("t", 1, 10, 25),
        ("u", 1, 3, 9),
        ("u", 2, 0, 0),
    ]
