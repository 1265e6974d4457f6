"""The driver of one stream: how its parts are assembled, started and stopped. See :class:`driver.service.driver.Driver`.

::

    driver         start, run, stop and close, in this order of steps
    routing        requests over HTTP: to the decision loop, or to the part that answers
    placing        once per placing interval: managed receivers, health, cursors, listeners' events
    housekeeping   partitions, commits, snapshot copies and completed positions
    shutdown       stop, drain, failure, and the summary
    view           status, health and readiness, as shown to operators
    ------------------------------------------------------------------------------------------------------------------------
    composition    makes the parts of a driver that leads
    ------------------------------------------------------------------------------------------------------------------------
    leadership     the journal's lead and its lease; standby             commits    Kafka's commits compared with the journal
    engine_start   the engine, started and warmed beside the rest
    agents         agents with a recent heartbeat                        admission  what receivers wait for before they claim
    activity       the driver's current state                            stores     the stores of journal and WAL
    options        the inputs of a driver                                futures    answers that are known already
"""

from __future__ import annotations

from driver.service.driver import Driver
from driver.service.options import DriverOptions
from driver.service.shutdown import CLOSE_SECONDS

__all__ = ["CLOSE_SECONDS", "Driver", "DriverOptions"]
