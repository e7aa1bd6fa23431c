"""What training a model costs: speed and memory beside PEFT + transformers, and what packing and checkpointing bring.

Run it with ``python benchmarks/models/run.py``; ``benchmarks/models/README.md`` says what the figures mean.
"""
