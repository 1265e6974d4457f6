"""Work after damage: compare the WAL with the journal, plan and restore, rebuild a lost journal, audit what was delivered."""
