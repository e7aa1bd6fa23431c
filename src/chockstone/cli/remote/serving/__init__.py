"""What commands do with the names that a server serves models by, its samplers and its worker replicas.

Must not read a store or a catalog.
"""
