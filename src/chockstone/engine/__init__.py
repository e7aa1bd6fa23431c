"""The engine: decides which request runs when, and what is kept: runs, samples, futures, journals and checkpoints.

Pure Python on one event loop, readable without torch. The API decodes and authorises requests before they come here;
results are bytes that the API passes on. Computing is left to the worker of ``backends.protocol``.
"""
