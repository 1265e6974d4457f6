"""What records come from: the protocol of a source, and a user's class as a source. Kafka's is in ``forebay.kafka.consume``."""
