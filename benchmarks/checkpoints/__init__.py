"""What a checkpoint costs: saving, stalling, restoring, bytes and scaling, ours beside peers and limits.

Run it with ``python benchmarks/checkpoints/run.py``; ``benchmarks/README.md`` says what the figures mean.
Only ``ours.py`` knows the library under test.
"""
