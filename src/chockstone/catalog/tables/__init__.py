"""One file per table: its row as a frozen dataclass, and the queries on it."""
