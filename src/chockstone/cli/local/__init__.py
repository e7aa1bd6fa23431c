"""The work of commands on a store or a data directory, without a server."""
