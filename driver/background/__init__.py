"""Work beside the decision loop: clean-up, adoption, snapshots' copies, discovery of partitions."""
