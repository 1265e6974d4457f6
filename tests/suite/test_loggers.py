"""A thread that creates loggers fails no phase of a test."""

from __future__ import annotations

import logging

from _pytest.logging import catching_logs

from tests.support.run.loggers import Loggers


def test_loggers_can_be_created_while_pytest_iterates_over_them() -> None:
    loggers = logging.root.manager.loggerDict
    assert isinstance(loggers, Loggers)
    for number, _ in enumerate(loggers.values()):
        if number < 2:
            logging.getLogger(f"{__name__}.{number}")
    assert f"{__name__}.1" in loggers
    with catching_logs(logging.NullHandler()):
        assert logging.root.manager.loggerDict is loggers
