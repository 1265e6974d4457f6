"""Queries that read Kafka itself.

::

    batch, stream   the readers that Spark calls: a batch query, and a streaming query
    questions       what the planner asks brokers: partitions, offsets, ids of topics
    planning        which offsets a batch reads, and what was lost
    reading         the reading in tasks
"""
