"""What travels: messages, tensors, tinker:// paths and failures, between client, server and worker.

Knows no torch, no SQL and no HTTP. The API decodes requests with it, the worker decodes what the
API passed on as bytes, and results are encoded here once, as the bytes the client will get.
"""
