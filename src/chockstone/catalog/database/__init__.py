"""Connections to SQLite and PostgreSQL: transactions, retries, locks, upgrades. Knows no table by name."""
