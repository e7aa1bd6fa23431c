"""Quantised weights: matrices of a frozen base model with 8 or 4 bits per number, in plain torch operations.

A matrix is dequantised just before each product with it, and the result is dropped after the product. Knows nothing of
files, adapters or requests.
"""
