"""Tables of what serves models: aliases of checkpoints and base models, and how exact vLLM servers are.

Each call is one transaction. Must not know permissions, HTTP or the engine.
"""
