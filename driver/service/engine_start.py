"""Starts and warms the engine in a thread of its own, while the journal is opened or a standby waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from driver.batches.job.engine import Engine
from forebay.model.errors import EngineLostError

log = logging.getLogger(__name__)


class EngineStart:
    """Starts ``engine`` once :meth:`begin` is called. Thread-safe.

    ``standby``: the driver may wait long before it leads. A start that fails then is tried again when it leads, and every
    ``check_seconds`` the engine is checked. ``lost`` is called with the error if it has ended meanwhile.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        standby: bool,
        check_seconds: float,
        lost: Callable[[EngineLostError], None],
    ) -> None:
        self._engine = engine
        self._standby = standby
        self._check_seconds = check_seconds
        self._lost = lost
        self._started = threading.Event()  # or failed to start
        self._needed = threading.Event()  # the driver leads, or ends
        self._ended = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="engine-start", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Return when the engine is started; it may still be warmed. Start it in this thread if :meth:`begin` was not called.

        Raises what the engine's start raises.
        """
        self._needed.set()
        if self._thread is not None:
            self._started.wait()
            if self._error is not None and not self._standby:
                raise self._error
        self._engine.start()

    def stop(self) -> None:
        """Stop the engine, even while it starts or is warmed."""
        self._ended = True
        self._needed.set()
        self._engine.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._engine.stop()  # it may have started meanwhile

    def _run(self) -> None:
        try:
            if not self._ended:
                self._engine.start()
        except BaseException as error:
            self._error = error
            if self._standby and not self._ended:
                log.warning("the standby can't start its engine, and tries again when it leads: %s", error)
                self._engine.stop()  # what did start holds memory
            return
        finally:
            self._started.set()
        try:
            if not self._ended:
                self._engine.warm()
        except Exception as error:
            if not self._ended:
                log.warning("the engine could not be warmed, so the first batch takes longer: %s", error)
        while self._standby and not self._needed.wait(self._check_seconds):
            try:
                self._engine.check()
            except EngineLostError as error:
                self._lost(EngineLostError(f"{error}; this standby ends, and is ready again after a restart"))
                return
