"""One file per version, each saying its tables in its own words: it must not change when tables.py does."""
