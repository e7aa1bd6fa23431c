"""Starts, watches and restarts worker processes. Imports no torch."""
