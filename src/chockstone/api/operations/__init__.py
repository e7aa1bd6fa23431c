"""Routes for operators and owners: the server, all runs, metrics, audit, policies, storage and trash.

They read and change through the engine. Must not know training or sampling.
"""
