"""Codecs: bytes to values and back, for protobuf, tensors, zstd and JSON. Nothing that arrives is trusted.

Must not know HTTP, SQL or torch.
"""
