"""Worker replicas: several workers behind one engine, each with a copy of the base models. Knows no runs.

- ``placement``: which replica takes a run, and which runs move. Pure: no I/O, no clock.
- ``replica_set``: the workers behind the protocol of one, and which of them takes a sample.
"""
