"""Scenarios about stores whose requests end late."""

from __future__ import annotations

from tests.simulation.script import RECEIVER, Script


def append_that_ends_after_a_take_over() -> Script:
    """The journal's store does not answer a driver's write for minutes.

    Another driver takes over; then the write is carried out.
    """
    script = Script(faults=("driver", "stall"))
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, until=lambda: script.sent("r1.1/report#1"), without=("deliver r1.1/report#1",))
    script.do("deliver r1.1/report#1 d1", "d1 decide", "journal stalls 0", "d1 append", "wait 2", "journal goes-on")
    script.open_driver("d2")
    script.do("d1 goes-on", "d1 sync")
    script.perhaps("d1 check", "d1 release")
    return script
