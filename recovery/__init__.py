"""The day after a crash: examine a WAL, plan, restore and repair; rebuild a lost journal; audit what was delivered."""
