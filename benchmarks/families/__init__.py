"""Every causal language model family of transformers: a tiny random model of each, and what the server can do with it.

``python docs/reference/architectures.py`` runs this and writes the table of the reference.
"""
