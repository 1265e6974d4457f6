"""Records of librdkafka as Arrow columns, without a Python object per message.

``gather.c`` does it, compiled when the package is built (``scripts/compile_native.py``); the modules here call it.

Where it can't be used, ``forebay.kafka.consume.messages`` does the same, several times slower."""
