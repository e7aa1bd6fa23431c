"""Conversations with models: names of models, prompts, and generations as text, calls of tools and tokens.

Shared by the APIs of other vendors, which it does not know.
"""
