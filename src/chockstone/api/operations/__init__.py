"""Routes for operators and owners: metrics, audit, policies, storage and trash.

They read and change through the engine. Must not know training or sampling.
"""
