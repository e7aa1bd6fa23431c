"""Text to tokens and back, by the tokenizers of served models. They run in a child process, so that a large vocabulary
or a chat template never holds the server. Knows nothing of requests, users or samplers: owners are names of queues.
"""
