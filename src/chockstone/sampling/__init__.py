"""Tokens out: generation with a KV cache, batched across requests and adapters.

Runs inside the worker process, beside training. Knows nothing of runs, lanes, catalogs or HTTP: it
is given a model, perhaps an adapter, and a request, and hands back a result.
"""
