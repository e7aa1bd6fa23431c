"""The fused network: a decoder for Llama-like models that computes all rows and LoRA adapters in one batch.

Query, key and value projections are one matrix product, gate and up projections another. Knows nothing of
requests and their order.
"""
