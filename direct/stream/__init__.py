"""Direct streams: every batch interval, the offsets that Kafka has gained become a batch, without receivers and without
a WAL.

A direct stream runs on the same journal, decision loop and batch scheduler as an intake's driver. The journal is the
checkpoint: it durably says which offsets are in which batch before the job gets the batch. So a rerun has the same
offsets (INV-3), and each offset is in exactly one batch (INV-2).

::

    stream       create_direct_stream and DirectStream: start, run, stop
    scheduling   the scheduler of the stream's batches, and how far the stream is
    planner      which offsets the next batch has, where partitions begin, what Kafka lost
    batch        a batch as the job gets it, and the reading of its rows
    reads        what the stream reads of its checkpoint's state
    cursor       the cursor in an intake that keeps what the stream has yet to read
    strategies   which partitions the stream reads
    commits      commits of offsets to a consumer group
    settings     the settings of a stream
"""
