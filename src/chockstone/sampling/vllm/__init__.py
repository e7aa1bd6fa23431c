"""Sampling by vLLM servers: the same requests and results, over HTTP.

Runs in the server's own process, on its event loop, and imports no torch. Knows nothing of archives or
runs: the caller gives a model's facts, an optional directory of a LoRA adapter, and a request.
"""
