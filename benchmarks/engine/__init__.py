"""The engine's figures: real engine, journal, catalog and store, with workers that compute nothing."""
