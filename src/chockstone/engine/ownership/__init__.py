"""Who may write to a data directory, a store and a catalog, and by which clock."""
