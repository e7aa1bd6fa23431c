"""The flytekit plugin, imported with flytekit: replaces its checkpoint class if ``CHOCKSTONE_FLYTE_AUTO=1``.

Otherwise it does nothing and imports nothing else.
"""

from __future__ import annotations

import os

if os.environ.get("CHOCKSTONE_FLYTE_AUTO") == "1":
    from chockstone.integrations.flyte.switch import install

    install()
