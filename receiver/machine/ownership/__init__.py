"""Which partitions this receiver may take records of: assignment by the group, claims at the driver, topic ids."""
