"""Chockstone: a training server that holds your fall, and the checkpoint library under it.

Importing this package is quick and loads neither torch nor numpy; each room loads what it needs.
"""

__version__ = "0.1.0"
