"""Constrained decoding: grammars of what a sample's text must be, compiled by llguidance, and masks of the next tokens.

Knows nothing of requests, batches and logits. ``grammar`` is the only file that imports llguidance: it is in an extra.
"""
