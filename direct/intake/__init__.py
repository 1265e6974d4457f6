"""Reading through an intake: records that Kafka has lost come from the WAL of an intake that took them in before
(``tracker``).

The intake's driver is asked only when Kafka has lost something: by tasks, for blocks; by a direct stream and its
checkpoint, to learn what is not lost. An offset means that of the newest incarnation of the topic with the range's
topic id. So records of another topic with the same name, or of another Kafka cluster, are never returned.

::

    reading    the reading of ranges from Kafka and the WAL in tasks
    coverage   which parts of a range the WAL holds
    access     where the intake's driver is, and the token and certificates for it
"""
