"""Llama-like models by our own decoder: all rows and adapters in one batch."""
