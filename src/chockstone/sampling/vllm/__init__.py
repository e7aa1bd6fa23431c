"""Tokens out of vLLM servers: the same requests and results, generated elsewhere.

Runs in the server's own process, on its event loop, and imports no torch. Knows nothing of archives or
runs: it is given a model's facts, perhaps the directory of a LoRA adapter, and a request.
"""
