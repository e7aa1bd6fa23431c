"""Benchmarks: scripts that measure Chockstone beside its peers on the same machine in the same run.

Nothing here is shipped, and nothing in ``src`` may import it.
"""
