"""The server process: preparation, listening, signals and shutdown."""
