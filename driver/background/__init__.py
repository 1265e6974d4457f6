"""Background work outside the decision loop: clean-up, adoption, snapshot copies, discovery of partitions."""
