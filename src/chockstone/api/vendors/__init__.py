"""Vendors: what the APIs of other vendors have in common here: paths, credentials and the shapes of errors.

Must not know what their routes do.
"""
