"""What the server costs: starting, overhead, training, sampling, sharing, answering and memory, through the SDK.

Run it with ``python benchmarks/server/run.py``; ``benchmarks/server/README.md`` says what the figures mean.
Only ``baselines.py`` imports torch.
"""
