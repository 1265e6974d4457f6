"""The checkpoint of a direct stream: a journal, which the stream leads while it runs.

::

    checkpoint   what a checkpoint contains, and what a person decides about it while the stream is stopped
    leadership   leading a checkpoint
    losses       what Kafka no longer holds, and the requests that journal it
"""
