"""What commands do with the names that a server serves models by. Must not read a store or a catalog."""
