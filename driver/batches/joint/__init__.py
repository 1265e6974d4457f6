"""Jobs that get the batches of several streams together."""
