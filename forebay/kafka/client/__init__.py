"""Access to a Kafka cluster: options, login, errors, administration, positions and groups' offsets."""
