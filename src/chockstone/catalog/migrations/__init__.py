"""Migrations: how catalogs of earlier versions become today's.

A change of ``tables.py`` comes with a file in ``versions`` and its number in ``opening.VERSIONS``;
the tests hold the three together. Only ``opening`` runs them, inside its transaction.
"""
