"""What flytekit imports by itself when it is imported: with ``CHOCKSTONE_FLYTE_AUTO=1`` all checkpoints are ours.

Without it nothing happens here, and nothing else is imported.
"""

from __future__ import annotations

import os

if os.environ.get("CHOCKSTONE_FLYTE_AUTO") == "1":
    from chockstone.integrations.flyte.switch import install

    install()
