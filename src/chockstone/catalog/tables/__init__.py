"""The tables: one file for each noun, with its row and the calls that read and change it.

Each call is one transaction. Must not know permissions, HTTP or the engine.
"""
