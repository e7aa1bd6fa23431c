"""The server process: startup, HTTP server, signals, watch on its own files, and shutdown.

Wires engine, catalog, store and routes together. Must not know single routes or messages.
"""
