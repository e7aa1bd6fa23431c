"""Requests: what is recorded of each HTTP request: its id, its trace, and its line in the log.

Must not know what a request asks for.
"""
