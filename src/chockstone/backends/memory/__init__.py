"""Memory: what models, runs and passes take of it, and what happens when there is not enough.

Knows sizes and errors only: no model, no run and no channel.
"""
