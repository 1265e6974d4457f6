"""RDDs over exact offsets of Kafka.

::

    rdd             create_rdd and KafkaRDD
    locations       where tasks prefer to run
    tasks           the reading in tasks
    deserializers   from bytes to keys and values
"""
