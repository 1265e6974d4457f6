"""A short run of the whole: three brokers, two drivers, two worker hosts and a store, with faults (make jepsen)."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.model.errors import UsageError
from tests.conftest import missing, require_kafka
from tests.jepsen.__main__ import play
from tests.jepsen.faults import KINDS
from tests.jepsen.world import Shape
from tests.support.processes.namespaces import require_namespaces
from tests.support.run.releases import RELEASES
from tests.support.stores.contract import require_s3

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.mark.timeout(900)
def test_checker_finds_nothing_in_a_run_with_faults(tmp_path: Path) -> None:
    """INV-1, INV-2, INV-3, INV-4 over a cluster whose links, processes, disks and clocks fail."""
    require_kafka()
    require_s3()
    require_namespaces(missing)
    assert play(tmp_path / "run", Shape(), seed=7, minutes=2.0, rate=300.0, kinds=list(KINDS))


@pytest.mark.variety
@pytest.mark.timeout(900)
def test_checker_finds_nothing_in_an_upgrade_between_faults(tmp_path: Path) -> None:
    """INV-1, INV-2, INV-3, INV-4 while drivers, agents and receivers of an earlier release are replaced one after another."""
    require_kafka()
    require_s3()
    require_namespaces(missing)
    try:
        RELEASES[-1].unpack()
    except UsageError as error:
        missing(str(error))
    assert play(tmp_path / "run", Shape(), seed=2631, minutes=3.0, rate=300.0, kinds=list(KINDS), release=RELEASES[-1])
