"""What commands do with the names that a server serves models by, and with its worker replicas.

Must not read a store or a catalog.
"""
