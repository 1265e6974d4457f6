"""The way of a record inside the receiver: buffer, stores, report to the driver, commit to the group."""
