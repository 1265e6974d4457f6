"""Clients of a Kafka cluster outside consuming and producing: administration, groups' offsets, errors, starting offsets."""
