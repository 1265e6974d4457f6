"""The Python client of a running stream: a typed method for each route of the driver that people and their tools use.

::

    from forebay.client import Client

    with Client("http://127.0.0.1:7080") as client:
        print(client.overview().state)
        for batch in client.each_batch(failed=True):
            print(batch.batch_id, batch.detail)

The page, the commands and this client use the same routes. The answers are the structs of ``forebay.messages``.
"""

from __future__ import annotations

from forebay.client.client import Client
from forebay.client.events import Event

__all__ = ["Client", "Event"]
