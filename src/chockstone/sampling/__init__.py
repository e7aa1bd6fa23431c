"""Sampling: token generation with a KV cache, batched across requests and LoRA adapters.

Runs inside the worker process, beside training. Knows nothing of runs, lanes, catalogs or HTTP: the caller
gives a model, an optional adapter and a request, and gets a result.

``Sampler`` schedules requests: chunked prefill of prompts, then continuous batching of decoding rows. The
arithmetic is behind the ``Network`` protocol: ``fused`` for Llama-like models, ``generic`` for all others.
``vllm`` sends the same requests to vLLM servers.
"""

from chockstone.extras import require

require("server", __name__, packages=["torch", "transformers"])
