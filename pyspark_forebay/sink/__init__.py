"""Queries that write to Kafka.

::

    writers   the writers that Spark calls: at least once, or in transactions
    rows      the columns that are written, and how tasks return rows
    options   the options of such queries
"""
