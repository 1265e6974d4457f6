"""Queries over an intake: they read its blocks, and Kafka for what only Kafka has.

::

    batch, stream    the readers that Spark calls: a batch query, and a streaming query
    source           partitions, limits and tasks of both
    reading          the reading of blocks in tasks
    planning         which blocks and offsets a batch reads: decisions on values
    cursor           the cursor of a streaming query
    progress_group   a consumer group that shows a query's progress
    client           requests to the stream's driver
"""
