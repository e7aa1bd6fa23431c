"""A front: one more process that answers clients, before the one server that has the engine.

It tells from the shared catalog what the catalog knows and hands on the rest. It keeps nothing: one that dies
costs its connections, which clients make again. Must not know lanes, journals, stores or workers.
"""
