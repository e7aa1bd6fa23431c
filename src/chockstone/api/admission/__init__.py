"""Admission: limits on connections and uploads, and which requests reach the routes.

The caller is identified before the body is read. Must not know engine, runs or checkpoints.
"""
