"""Tables of what users address by a name of their own: aliases of checkpoints and base models.

Each call is one transaction. Must not know permissions, HTTP or the engine.
"""
