"""Anthropic: the Messages API, for the SDKs of Anthropic and for clients such as Claude Code.

Translates requests into conversations of ``api/chat``, and what a model writes into messages and events. Must not know
how text becomes tokens, or how tokens are sampled.
"""
