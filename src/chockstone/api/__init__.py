"""The HTTP API: decodes and authorises requests, submits them to the engine, waits, and encodes answers.

To add an endpoint, write its messages in a file of ``wire/messages`` and its route in a file of ``tinker`` or
``operations``. Must not know torch, journals or SQL.
"""

from chockstone.extras import require

require("server", __name__, packages=["fastapi", "orjson", "pydantic"])
