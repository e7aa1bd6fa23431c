"""What storage holds for each attempt: its place, claims, write lease, generations and Flyte's native files.

Reads and writes single attempts. It must not know how a resume chooses among attempts, nor any platform but the format
of Flyte's native checkpoints.
"""
