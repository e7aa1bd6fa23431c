"""The adapter benchmark: a training framework's own way to save and restore, beside the same through Chockstone.

``host.py`` has the contract, and one file per host implements it. A new host is one file and one line in ``run.py``.
"""
