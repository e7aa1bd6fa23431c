"""Training runs: commands, lanes, turns, recovery and the registry of live runs."""
