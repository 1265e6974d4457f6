"""Records of librdkafka as Arrow columns without a Python object per message: ``gather.c``, compiled when the package is built, and
its caller.

Where it can't be used, ``forebay.kafka.consume.messages`` does the same, several times slower."""
