"""Sampling by vLLM servers: the same requests and results.

Runs in the server process, on its event loop, and imports no torch. It knows nothing of archives or runs: it takes
facts about a model, perhaps the directory of a LoRA adapter, and a request.
"""
