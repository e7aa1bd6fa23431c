"""The wire: messages, tensors, tinker:// paths and failures that client, server and worker exchange.

Must not know torch, SQL or HTTP. The API decodes requests with it, the worker decodes bodies that the API passed on
as bytes, and results are encoded here once, as the bytes that the client gets.
"""
