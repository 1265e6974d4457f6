"""Limits the time and the bytes of each whole request of an HTTP client, which itself has a timeout only for each read."""

from __future__ import annotations

import queue
import threading
import zlib
from typing import Any

#: maximum bytes of an answer, before and after decompression
ANSWER_BYTES_MAX = 8_388_608
#: window of zlib for gzip
_GZIP = 31


class TooLongAnswerError(ValueError):
    """An answer has more than ``ANSWER_BYTES_MAX`` bytes."""

    def __init__(self) -> None:
        super().__init__(f"the answer has more than {ANSWER_BYTES_MAX} bytes")


def bound(client: Any, httpx: Any, seconds: float) -> None:
    """End each request of ``client``, a client of the module ``httpx``, that has no whole answer within ``seconds``.

    The request then raises ``httpx.ReadTimeout``; a larger answer raises TooLongAnswerError. Each request runs in a thread,
    because no timeout of httpx limits the lookup of a name, or the head of an answer. After a timeout, the thread ends at the
    next byte of the answer, or when its read times out.
    """
    plain = client.send
    client.headers["Accept-Encoding"] = "gzip"

    def send(request: Any, **options: Any) -> Any:
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ended = threading.Event()

        def run() -> None:
            try:
                made.put(_whole(plain(request, **{**options, "stream": True}), httpx, ended))
            except BaseException as error:  # raised below
                made.put(error)

        threading.Thread(target=run, name="registry-request", daemon=True).start()
        try:
            answer = made.get(timeout=seconds)
        except queue.Empty:
            raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s", request=request) from None
        finally:
            ended.set()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    client.send = send


def _whole(response: Any, httpx: Any, ended: threading.Event) -> Any:
    """Return the response with its content, and without headers about how that was sent."""
    content = bytearray()
    try:
        for part in response.iter_raw():
            content += part
            if len(content) > ANSWER_BYTES_MAX or ended.is_set():
                raise TooLongAnswerError
    finally:
        response.close()
    if response.headers.get("Content-Encoding", "identity").lower() == "gzip":
        content = _decompressed(content)
    kept = {name: value for name, value in response.headers.items() if name in ("content-type", "location")}
    return httpx.Response(response.status_code, headers=kept, content=bytes(content), request=response.request)


def _decompressed(content: bytearray) -> bytearray:
    """Return the content of gzip. Raises TooLongAnswerError; ValueError if it is damaged."""
    try:
        found = zlib.decompressobj(_GZIP).decompress(content, ANSWER_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError(f"the answer is not gzip, as it says: {error}") from None
    if len(found) > ANSWER_BYTES_MAX:
        raise TooLongAnswerError
    return bytearray(found)
