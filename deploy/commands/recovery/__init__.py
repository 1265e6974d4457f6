"""Commands after damage or loss: recover, journal."""
