"""The tracker's decisions about partitions.

::

    adoption     the search of the WAL at a position where Kafka does not continue
    faults       such positions
    claims       who takes in a partition, and from where
    commands     commands that a receiver has not acknowledged       writers    who may still write under older tokens
"""
