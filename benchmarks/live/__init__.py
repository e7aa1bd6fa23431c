"""A live server and what a client needs of it, for all benchmarks that go through the API or the SDK.

Only ``server.py`` knows how the server is started.
"""
