"""The options of ``format("forebay")``: the names, meanings and refusals of Spark's Kafka source.

Names are matched without regard to case. An option that Spark refuses is refused with Spark's reason. An unknown option is
ignored, as in Spark, and a warning names it.

::

    catalog        every option: name, default, meaning
    source         all options of a query that reads
    limits         where a query starts and ends
    subscription   which topics and partitions it reads
    values         how one option is read: a flag, a number, a duration
"""
