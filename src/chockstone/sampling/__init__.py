"""Sampling: generation with a KV cache, batched across requests and adapters.

Runs inside the worker process, beside training. It knows nothing of runs, lanes, catalogs or HTTP: it takes a model,
perhaps an adapter, and a request, and returns a result.
"""
