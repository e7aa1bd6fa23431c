"""Searches over tables, with filters, orders and cursors, for lists that people look through.

They read rows only. Must not know who may see what: conditions on owners come from the caller.
"""
