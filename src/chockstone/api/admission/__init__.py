"""Admission: what a connection may cost the server, and which requests reach the routes.

The caller is known before a byte of the body is read. Must not know engine, runs or checkpoints.
"""
