"""The server's documentation of itself: the page at ``/``, the API viewer at ``/docs``, and the OpenAPI document.

Everything is served from this package, so that it works offline. Must not know users, runs or the engine.
"""
