"""Conversations with models: text and calls of tools from sampled tokens.

Shared by the APIs of other vendors, which it does not know.
"""
