"""The actions of operators."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from forebay import messages as m
from forebay.client.connection import ClientConnection


class Actions(ClientConnection):
    """Changes the stream. Each method needs the role ``operator``."""

    def stop(self, *, drain: bool = False, timeout_seconds: float = 0.0, cause: str = "") -> str:
        """Stop the driver, after a drain if ``drain``. Return its answer as text, as all actions do."""
        return self._do("stop", m.StopRequest(drain=drain, timeout_seconds=timeout_seconds, cause=cause))

    def retry(self, *, cause: str = "") -> str:
        """Begin the next attempt at each failed or unreadable batch now."""
        return self._do("retry", m.RetryRequest(cause=cause))

    def skip(self, batch_id: int, cause: str) -> str:
        """End a failed or unreadable batch without its job. The audit lists its records as a loss, with ``cause``."""
        return self._do("skip", m.SkipBatchRequest(batch_id=batch_id, cause=cause))

    def pause(self, *, cause: str = "") -> str:
        """Begin no more batches until :meth:`resume`; intake continues."""
        return self._do("pause", m.PauseRequest(paused=True, cause=cause))

    def resume(self, *, cause: str = "") -> str:
        """Begin batches again after :meth:`pause`."""
        return self._do("pause", m.PauseRequest(paused=False, cause=cause))

    def restart_receiver(self, receiver_id: str, *, cause: str = "") -> str:
        """Drain a receiver; its agent or its supervisor then starts it again."""
        return self._do("restart-receiver", m.RestartReceiverRequest(receiver_id=receiver_id, cause=cause))

    def replay(self, *, batch: int = 0, time_ms: int = 0, cause: str = "") -> str:
        """Run completed batches again, from an id or number, or from a time on."""
        return self._do("replay", m.ReplayRequest(batch=batch, time_ms=time_ms, cause=cause))

    def reset(self, request: m.ResetRequest) -> m.ResetAnswer:
        """Begin new incarnations at other offsets, or only plan it (without ``request.apply``)."""
        return self._driver.post("/v1/operator/reset", request, m.ResetAnswer)

    def accept_gap(self, topic: str, partition: int, from_offset: int, until_offset: int, *, cause: str = "") -> str:
        """Accept exactly the gap that the status shows, and continue after it."""
        return self._do(
            "accept-gap",
            m.AcceptGapRequest(
                topic=topic, partition=partition, from_offset=from_offset, until_offset=until_offset, cause=cause
            ),
        )

    def accept_loss(self, batch_id: int, ranges: Sequence[str] = (), *, cause: str = "") -> str:
        """Complete a batch without ``ranges``, or without those that no tier can read."""
        return self._do("accept-loss", m.AcceptLossRequest(batch_id=batch_id, ranges=tuple(ranges), cause=cause))

    def drop_cursor(self, cursor: str, *, cause: str = "") -> str:
        """End a cursor; the WAL then keeps nothing for it."""
        return self._do("drop-cursor", m.DropCursorRequest(cursor=cursor, cause=cause))

    def forget(self, name: str, *, cause: str = "") -> str:
        """Expect no more heartbeats of a receiver or host."""
        return self._do("forget", m.ForgetRequest(name=name, cause=cause))

    def fence(self, topic: str, partition: int, receiver_id: str, *, cause: str = "") -> str:
        """End the epoch of a receiver whose host is lost for good."""
        return self._do("fence", m.FenceRequest(topic=topic, partition=partition, receiver_id=receiver_id, cause=cause))

    def _do(self, action: str, request: msgspec.Struct) -> str:
        return self._driver.post(f"/v1/operator/{action}", request, m.OperatorAnswer).message
