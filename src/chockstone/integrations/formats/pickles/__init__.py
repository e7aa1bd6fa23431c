"""Reads pickles as data: builds containers, plain values and tensors, and calls nothing that a pickle names.

The unpicklers of Python and torch trust or half trust their input. These readers know a fixed list of names, count what
they build, and map the bytes of tensors. They raise ImportRefused, and know nothing of directories and formats.
"""
