"""The playground's work: text to tokens and back, and samples through the engine's sampling path.

Tokenizers run in a child process, so that a large vocabulary or a chat template never holds the server.
"""
