"""Bytes to values and back: protobuf, tensors, zstd, and JSON from clients, all read without trust."""
