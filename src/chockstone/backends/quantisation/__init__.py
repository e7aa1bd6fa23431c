"""Base models in low precision: which layers are quantised, and how they are read from a model's files.

Ordinary files are quantised while they are read, one weight after the other. Files that bitsandbytes has quantised are
read as they are, without that library. How a quantised weight computes is in ``sampling.quantised``.
"""
