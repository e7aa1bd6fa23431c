"""Who runs when, and what is kept: lanes, futures, samples, checkpoints, and the backend they are handed to.

Pure Python on one event loop, readable without torch. What it is told is decoded and authorised
already; what it answers are bytes that the API passes on.
"""
