"""Mixtures of experts: experts modules that take adapters, and routers whose choices are recorded and replayed.

Training uses both, too. Knows nothing of architectures: only the interface that transformers gives all of them.
"""
