"""JSON requests and responses of the HTTP API, as pydantic models, one file per resource.

Must not know how a request is served.
"""
