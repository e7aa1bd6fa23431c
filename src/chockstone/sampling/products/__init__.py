"""Products of plain matrices on a CPU: which library computes them, and how the bits of a row stay what they are.

Knows nothing of models, adapters or requests. On GPUs, torch computes all products.
"""
