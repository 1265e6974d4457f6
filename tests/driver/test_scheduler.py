"""What the scheduler gives an engine to run."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from driver.scheduler import Scheduler
from forebay.clock import SystemClock
from tests.support.tracked import Tracked


def test_a_batch_has_headers_if_one_of_its_blocks_has_whatever_the_settings_say_by_now() -> None:
    """INV-3: a rerun under changed settings can still be read."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    block = t.take_in(epoch, token, 9)
    batch = t.state.batches[t.batch()]
    nothing = cast(Any, None)
    scheduler = Scheduler(nothing, nothing, nothing, SystemClock(), 1.0, lambda: 1, 1, 1.0, headers=False)
    assert not scheduler._work(t.state, batch).headers
    t.state.blocks[block.id] = msgspec.structs.replace(block, meta=msgspec.structs.replace(block.meta, headers=True))
    assert scheduler._work(t.state, batch).headers
