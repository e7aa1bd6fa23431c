"""The settings of a server: their names, sources, checks and table."""
