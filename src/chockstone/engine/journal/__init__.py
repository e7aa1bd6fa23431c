"""The append-only record of acknowledged operations: segments, writer and scan."""
