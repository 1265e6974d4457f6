"""Recovery from damage: compare the WAL with the journal, plan and carry out a recovery, rebuild a lost journal, and audit the
batches."""
