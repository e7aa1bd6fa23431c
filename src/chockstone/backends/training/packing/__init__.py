"""Packing: micro-batches without padding, in which sequences that begin alike share their beginning.

All layers but attention run on a flat batch. Attention runs on the sequences themselves. Knows nothing of losses, runs
or requests.
"""
