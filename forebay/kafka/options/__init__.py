"""Kafka options: those of the user, those of Kafka's Java client, and those that librdkafka receives."""
