"""What commands do with a store or a data directory on this machine."""
